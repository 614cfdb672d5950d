// Losses whose results are as large as their inputs; a scalar loss is looked at.
#include <cmath>

#include "bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;
constexpr int64_t kMean = 1;

// Of targets without weights the total is their number, and where that is 0 no element is divided by it.
double smallest_total(A a) {
  const bool counts_targets =
      a.produced_by(6, "aten::nll_loss_forward") || a.produced_by(6, "aten::nll_loss2d_forward");
  return std::max(!a.has_value(3) && counts_targets ? 1.0 : 0.0, a.min_value(6));
}

// nll_loss_backward(g, x, target, weight, reduction, ignore_index, total_weight): -weight g, of a mean over the total.
void nll_loss_backward(A a, Results out) {
  const double weight = a.has_value(3) ? a.max_abs(3) : 1;
  const double each = a.max_abs(0) * weight;
  if (a.integer(4, kMean) != kMean) {
    out[0] = {each};
  } else if (const double total = smallest_total(a); total > 0) {
    out[0] = by_way_of(largest({each, a.max_abs(0) / total}), {product_of(a, a.max_abs(0), weight, 1 / total)});
  }
}

// mse_loss_backward(g, x, target, reduction): 2 (x - target) g, over n for a mean.
void mse_loss_backward(A a, Results out) {
  const double apart = 2 * (a.max_abs(1) + a.max_abs(2));
  out[0] = by_way_of(apart, {apart * a.max_abs(0)});
}

}  // namespace

void add_loss_rules(RuleTable& table) {
  table["nll_loss_backward"] = nll_loss_backward;
  table["nll_loss2d_backward"] = nll_loss_backward;
  table["mse_loss_backward"] = mse_loss_backward;
}

}  // namespace torchnan
