// Hints by operator, a file for each family of operators. Each function returns the property of the arguments that
// makes the result non-finite. Empty if the operator belongs to another family, or if its rule does not fit the
// statistics.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

#include "report/operation.h"

namespace torchnan {

Hint hint_of_domains(const Operation& op);            // functions of one argument that are defined on an interval
Hint hint_of_special_functions(const Operation& op);  // the gamma function and its relatives; zeta, entropy, x log y
Hint hint_of_quotients(const Operation& op);          // division and remainders
Hint hint_of_powers(const Operation& op);             // pow
Hint hint_of_infinities(const Operation& op);         // 0 * inf and inf - inf
Hint hint_of_softmax(const Operation& op);            // softmax and attention
Hint hint_of_reductions(const Operation& op);         // means over nothing, variances of one element
Hint hint_of_losses(const Operation& op);             // targets without anything to average or align
Hint hint_of_normalization(const Operation& op);      // variances that are 0, negative or too large
Hint hint_of_linear_algebra(const Operation& op);     // singular matrices
Hint hint_of_optimizers(const Operation& op);         // steps of an optimizer in one kernel

// The rule of one operator, in the table of a family.
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
