#include <torchnan/options.h>

#include <algorithm>

#include <fmt/format.h>

#include "text/printable.h"

namespace torchnan {
namespace {

// Whether the text can be the name of an operator, or a glob for several. Anything else would never match.
bool is_pattern(const std::string& text) {
  const auto may_be_in = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_:*?[]!^-").find(c) != std::string_view::npos;
  };
  return !text.empty() && std::all_of(text.begin(), text.end(), may_be_in);
}

bool is_path(const std::string& text) {
  return text.find_first_not_of(" \t\n\r\f\v") != std::string::npos && text.find('\0') == std::string::npos;
}

}  // namespace

std::vector<std::string> Options::validate() const {
  std::vector<std::string> messages;
  if (max_findings < 1) {
    messages.push_back(fmt::format("max_findings must be at least 1, not {}", max_findings));
  }
  if (rescan_every < 0) {
    messages.push_back(fmt::format("rescan_every must be 0 or a number of steps, not {}", rescan_every));
  }
  if (!check_nan && !check_inf) {
    messages.emplace_back("check_nan and check_inf are both false: nothing would be checked");
  }
  for (const std::string& pattern : skip_ops) {
    if (is_pattern(pattern)) continue;
    messages.push_back(fmt::format("skip_ops holds '{}'; give names or globs without overload, such as 'aten::log'",
                                   printable(pattern)));
  }
  if (!log.empty() && !is_path(log)) messages.push_back(fmt::format("log '{}' is not a path", printable(log)));
  return messages;
}

}  // namespace torchnan
