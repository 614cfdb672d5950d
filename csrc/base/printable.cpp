#include "base/printable.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdint>
#include <iterator>

#include "base/format.h"

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

struct Range {
  uint32_t first;
  uint32_t last;
};

// Characters that are invisible, move other characters, or break a line: categories Cc, Cf, Zl and Zp of Unicode, those
// that a font may leave out ("default ignorable"), and noncharacters. Sorted.
constexpr Range kInvisible[] = {
    {0x0000, 0x001f},   {0x007f, 0x009f},   {0x00ad, 0x00ad},   {0x034f, 0x034f},   {0x0600, 0x0605},
    {0x061c, 0x061c},   {0x06dd, 0x06dd},   {0x070f, 0x070f},   {0x0890, 0x0891},   {0x08e2, 0x08e2},
    {0x115f, 0x1160},   {0x17b4, 0x17b5},   {0x180b, 0x180f},   {0x200b, 0x200f},   {0x2028, 0x202e},
    {0x2060, 0x206f},   {0x3164, 0x3164},   {0xfeff, 0xfeff},   {0xffa0, 0xffa0},   {0xfff0, 0xfffb},
    {0xfffe, 0xffff},   {0x110bd, 0x110bd}, {0x110cd, 0x110cd}, {0x13430, 0x1343f}, {0x1bca0, 0x1bca3},
    {0x1d173, 0x1d17a}, {0xe0000, 0xe0fff},
};

// Marks that are drawn over the character before them, in scripts where long runs would cover other lines.
constexpr Range kCombining[] = {
    {0x0300, 0x036f}, {0x0483, 0x0489}, {0x0591, 0x05bd}, {0x0610, 0x061a}, {0x064b, 0x065f},
    {0x0e31, 0x0e31}, {0x0e34, 0x0e3a}, {0x0e47, 0x0e4e}, {0x0f71, 0x0f84}, {0x1ab0, 0x1aff},
    {0x1dc0, 0x1dff}, {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f},
};
constexpr int kMaxMarks = 3;  // per character: as many as languages need

template <size_t n>
bool is_in(const Range (&ranges)[n], uint32_t c) {
  const Range* after = std::upper_bound(ranges, ranges + n, c, [](uint32_t x, const Range& r) { return x < r.first; });
  return after != ranges && c <= std::prev(after)->last;
}

std::string escaped(uint32_t c) {
  if (c < 0x100) return format_text("\\x{:02x}", c);
  return c < 0x10000 ? format_text("\\u{:04x}", c) : format_text("\\U{:08x}", c);
}

// Returns the text with an escape for each byte that is not UTF-8 and each character that is not accepted.
template <typename AsItIs>
std::string rewritten(std::string_view text, size_t limit, AsItIs&& may_stay) {
  std::string made;
  for (size_t at = 0; at < text.size();) {
    if (made.size() >= limit) return made + "...";
    const CodePoint c = decode(text, at);
    if (c.length == 0) {
      made += escaped(static_cast<unsigned char>(text[at]));
    } else if (may_stay(c.value)) {
      made += text.substr(at, c.length);
    } else {
      made += escaped(c.value);
    }
    at += std::max<size_t>(c.length, 1);
  }
  return made;
}

}  // namespace

std::string printable(std::string_view text, size_t limit) {
  int marks = kMaxMarks;  // at the start there is no character to combine with
  return rewritten(text, limit, [&](uint32_t c) {
    marks = is_in(kCombining, c) ? marks + 1 : 0;
    return marks <= kMaxMarks && !is_in(kInvisible, c);
  });
}

std::string to_valid_utf8(std::string_view text, size_t limit) {
  return rewritten(text, limit, [](uint32_t) { return true; });
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
