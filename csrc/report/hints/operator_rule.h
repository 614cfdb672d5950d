// The rule of one operator, and the table of rules of a family of operators.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

#include "report/operation.h"

namespace torchnan {

struct OperatorRule {
  std::string_view op;  // like Operation::name()
  Hint (*hint)(const Operation&);
};

// Returns the hint from the operator's rule, empty if the table has none.
inline Hint hint_by_operator(std::span<const OperatorRule> rules, const Operation& op) {
  const auto rule =
      std::find_if(rules.begin(), rules.end(), [&](const OperatorRule& one) { return one.op == op.name(); });
  return rule == rules.end() ? Hint{} : rule->hint(op);
}

}  // namespace torchnan
