#include "report/hints/families.h"

#include <algorithm>

namespace torchnan {
namespace {

Hint hint_for_fused_step(const Operation& op) {
  const Argument eps = op.argument("eps");
  const bool is_finite = std::none_of(op.arguments().begin(), op.arguments().end(),
                                      [](const Argument& x) { return x.input->tally.nonfinite() > 0; });
  if (!op.made_nan() || !is_finite || !eps.has_range() || eps.min() != 0) return {};
  return about(eps, "eps is 0: where both moments are 0, 0/0 is NaN");
}

}  // namespace

Hint hint_of_optimizers(const Operation& op) {
  static constexpr OperatorRule kRules[] = {
      {"_fused_adam", hint_for_fused_step},
      {"_fused_adamw", hint_for_fused_step},
  };
  return hint_by_operator(kRules, op);
}

}  // namespace torchnan
