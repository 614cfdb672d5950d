#include "report/hints/families.h"

#include "base/format.h"

#include <utility>
#include <vector>

namespace torchnan {
namespace {

// Returns a pair of arguments of which one holds zeros and the other infinities; absent ones if there is none.
std::pair<Argument, Argument> zero_and_infinity(const Operation& op) {
  for (const Argument& zero : op.arguments()) {
    for (const Argument& infinite : op.arguments()) {
      if (zero.index != infinite.index && zero.holds_zeros() && infinite.holds_infinities()) return {zero, infinite};
    }
  }
  return {};
}

Hint hint_for_product(const Operation& op) {
  const auto [zero, infinite] = zero_and_infinity(op);
  if (!op.made_nan() || op.is_complex() || !zero) return {};
  if (zero.holds_infinities() && infinite.holds_zeros()) {
    return about(infinite, format_text("{} and {} hold zeros and infinities: 0 * inf is NaN", infinite.input->name,
                                       zero.input->name));
  }
  return about(infinite, format_text("{} holds infinities where {} is zero: 0 * inf is NaN", infinite.input->name,
                                     zero.input->name));
}

// With finite factors, the product is NaN only if an intermediate Inf meets a zero.
Hint hint_for_product_of_elements(const Operation& op) {
  const Argument x = op.self();
  if (!op.made_nan() || op.is_complex() || !x.is_finite() || !x.holds_zeros()) return {};
  return about(x,
               format_text("{} holds zeros, and a product on the way is beyond {}, the largest that {} can hold: 0 * "
                           "inf is NaN",
                           x.input->name, op.limit(), op.dtype()));
}

// For sums of products.
Hint hint_for_matrix_product(const Operation& op) {
  if (!op.made_nan() || op.is_complex()) return {};
  const bool has_zeros = static_cast<bool>(zero_and_infinity(op).first);
  for (const Argument& infinite : op.arguments()) {
    if (!infinite.holds_infinities()) continue;
    return about(infinite, format_text("{} holds infinities: {}inf - inf is NaN", infinite.input->name,
                                       has_zeros ? "0 * inf or " : ""));
  }
  return {};
}

// Terms with a zero factor contribute nothing.
bool has_zero_factor(const Operation& op) {
  return op.argument("alpha").holds_zeros() || op.argument("weight").holds_zeros();
}

Hint hint_for_cancelling(const Operation& op) {
  if (!op.made_nan() || has_zero_factor(op)) return {};
  std::vector<Argument> infinite;
  for (const Argument& x : op.arguments()) {
    if (x.holds_infinities()) infinite.push_back(x);
  }
  if (infinite.size() > 1) {
    return about(infinite[0], format_text("{} and {} hold infinities: inf - inf is NaN", infinite[0].input->name,
                                          infinite[1].input->name));
  }
  if (infinite.size() == 1 && infinite[0].tally().posinf > 0 && infinite[0].tally().neginf > 0) {
    return about(infinite[0], format_text("{} holds +inf and -inf: inf - inf is NaN", infinite[0].input->name));
  }
  return {};
}

Hint hint_for_trigonometry(const Operation& op) {
  const Argument x = op.self();
  if (!op.made_nan() || !x.holds_infinities()) return {};
  return about(x, format_text("{} holds infinities: {} of them is NaN", x.input->name, op.name()));
}

}  // namespace

Hint hint_of_infinities(const Operation& op) {
  static constexpr OperatorRule kRules[] = {
      {"mul", hint_for_product},
      {"prod", hint_for_product_of_elements},
      {"cumprod", hint_for_product_of_elements},
      {"mm", hint_for_matrix_product},
      {"bmm", hint_for_matrix_product},
      {"addmm", hint_for_matrix_product},
      {"baddbmm", hint_for_matrix_product},
      {"addcmul", hint_for_matrix_product},
      {"add", hint_for_cancelling},
      {"sub", hint_for_cancelling},
      {"rsub", hint_for_cancelling},
      {"lerp", hint_for_cancelling},
      {"sum", hint_for_cancelling},
      {"cumsum", hint_for_cancelling},
      {"sin", hint_for_trigonometry},
      {"cos", hint_for_trigonometry},
      {"tan", hint_for_trigonometry},
  };
  return hint_by_operator(kRules, op);
}

}  // namespace torchnan
