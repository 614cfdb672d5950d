// The rule of one operator, and the table that a family of operators has of them.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

#include "report/operation.h"

namespace torchnan {

struct OperatorRule {
  std::string_view op;  // as Operation::name()
  Hint (*hint)(const Operation&);
};

// Returns what the operator's rule says, empty if the table has none.
inline Hint hint_by_operator(std::span<const OperatorRule> rules, const Operation& op) {
  const auto rule =
      std::find_if(rules.begin(), rules.end(), [&](const OperatorRule& one) { return one.op == op.name(); });
  return rule == rules.end() ? Hint{} : rule->hint(op);
}

}  // namespace torchnan
