#include "report/printable.h"

#include <unistd.h>

#include <climits>
#include <cstdint>

#include <fmt/format.h>

namespace torchnan {
namespace {

// Decodes the UTF-8 sequence at `at`; length 0 if it is broken.
struct CodePoint {
  uint32_t value = 0;
  size_t length = 0;
};

CodePoint decode(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  if (lead < 0x80) return {lead, 1};
  const size_t length = lead >= 0xf0 && lead < 0xf5 ? 4 : lead >= 0xe0 && lead < 0xf0 ? 3 : lead >= 0xc2 ? 2 : 0;
  if (length == 0 || lead >= 0xf5 || at + length > text.size()) return {};
  uint32_t value = lead & (0xff >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return {};
    value = (value << 6) | (byte(at + i) & 0x3f);
  }
  const bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
  const bool surrogate = value >= 0xd800 && value < 0xe000;
  if (overlong || surrogate || value > 0x10ffff) return {};
  return {value, length};
}

bool is_invisible(uint32_t c) {
  const bool control = c < 0x20 || (c >= 0x7f && c < 0xa0);
  const bool separator = c == 0x2028 || c == 0x2029;
  const bool bidirectional = (c >= 0x200b && c <= 0x200f) || (c >= 0x202a && c <= 0x202e) ||
                             (c >= 0x2066 && c <= 0x2069) || c == 0x061c || c == 0xfeff;
  return control || separator || bidirectional;
}

}  // namespace

std::string printable(std::string_view text, size_t limit) {
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    if (shown.size() >= limit) return shown + "...";
    const CodePoint c = decode(text, at);
    if (c.length == 0) {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at]));
      ++at;
      continue;
    }
    if (is_invisible(c.value)) {
      shown += c.value < 0x100 ? fmt::format("\\x{:02x}", c.value) : fmt::format("\\u{:04x}", c.value);
    } else {
      shown += text.substr(at, c.length);
    }
    at += c.length;
  }
  return shown;
}

std::string short_path(const std::string& path) {
  for (const char* const packages : {"/site-packages/", "/dist-packages/"}) {
    const size_t at = path.rfind(packages);
    if (at != std::string::npos) return path.substr(at + std::char_traits<char>::length(packages));
  }
  char cwd[PATH_MAX];
  if (getcwd(cwd, sizeof cwd) != nullptr) {
    const std::string here = std::string(cwd) + "/";
    if (here.size() > 1 && path.rfind(here, 0) == 0) return path.substr(here.size());
  }
  return path;
}

}  // namespace torchnan
