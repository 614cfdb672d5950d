// Losses with results as large as their inputs. A scalar loss is scanned instead.
#include <algorithm>

#include "check/bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;
constexpr int64_t kMean = 1;

// The total weight. Without weights, the divisor is the number of targets; if it is 0, nothing is divided.
Value total_weight(A a) {
  Value total = a.divisor(6);
  const bool counts_targets =
      a.produced_by(6, "aten::nll_loss_forward") || a.produced_by(6, "aten::nll_loss2d_forward");
  if (!a.has_value(3) && counts_targets) total.min_abs = std::max(total.min_abs, 1.0);
  return total;
}

// nll_loss_backward(g, x, target, weight, reduction, ignore_index, total_weight): -weight g, divided by the total for a
// mean. LossNLL.cpp, LossNLL2d.cpp
void nll_loss_backward(A a, Results out) {
  const Value g = a[0];
  const Value weight = a.scalar(3, 1);
  if (a.integer(4, kMean) != kMean) {
    out[0] = -weight * g;
  } else {
    const Value total = total_weight(a);
    out[0] = either(-weight * (g / total), -weight * g / total);
  }
}

// mse_loss_backward(g, x, target, reduction): norm (x - target) g, where norm is 2 or 2 / n. cpu/PointwiseOpsKernel.cpp
void mse_loss_backward(A a, Results out) { out[0] = exactly(2) * (a[1] - a[2]) * a[0]; }

}  // namespace

void add_loss_rules(RuleTable& table) {
  table["nll_loss_backward"] = nll_loss_backward;
  table["nll_loss2d_backward"] = nll_loss_backward;
  table["mse_loss_backward"] = mse_loss_backward;
}

}  // namespace torchnan
