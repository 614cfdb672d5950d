// The name of an operator as in hints and generated code.
#pragma once

#include <string_view>

namespace torchnan {

inline constexpr std::string_view kForeachPrefix = "_foreach_";

// Returns the name without namespace: "aten::_foreach_addcdiv_" -> "_foreach_addcdiv_".
inline std::string_view without_namespace(std::string_view op) {
  if (const size_t colons = op.rfind("::"); colons != std::string_view::npos) op.remove_prefix(colons + 2);
  return op;
}

// Returns it without "_foreach_" and the underscore of the in-place form, too: "addcdiv".
inline std::string_view bare_operator_name(std::string_view op) {
  op = without_namespace(op);
  if (op.starts_with(kForeachPrefix)) op.remove_prefix(kForeachPrefix.size());
  while (op.ends_with('_')) op.remove_suffix(1);
  return op;
}

}  // namespace torchnan
