#include <torchnan/options.h>

#include <fmt/format.h>

namespace torchnan {

std::vector<std::string> Options::validate() const {
  std::vector<std::string> messages;
  if (max_findings < 1) {
    messages.push_back(fmt::format("max_findings must be at least 1, not {}", max_findings));
  }
  if (sample < 0) messages.push_back(fmt::format("sample must be 0 or a number of steps, not {}", sample));
  if (exact && sample > 0) messages.emplace_back("exact reads every result: there is nothing left for sample");
  if (!check_nan && !check_inf) {
    messages.emplace_back("check_nan and check_inf are both false: nothing would be looked for");
  }
  for (const std::string& pattern : skip_ops) {
    if (pattern.empty()) messages.emplace_back("skip_ops holds an empty name; give names such as 'aten::log'");
  }
  return messages;
}

}  // namespace torchnan
