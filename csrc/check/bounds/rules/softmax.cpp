// Softmax and its relatives. The largest exponential is e^0 = 1, so the sum is at least 1 for every x.
#include <cmath>

#include "check/bounds/dtype_range.h"
#include "check/bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;

// Finite, without a mask of -inf.
bool is_finite(A a) { return a.bound(0).known() && a.bound(0).max_abs <= largest_number(a.dtype()); }

// 0 <= softmax <= 1 if x is finite. x - max x may be -inf, for example with a mask of the lowest finite number; its
// exponential is 0. A row that is -inf everywhere gives NaN.
void softmax(A a, Results out) {
  if (uses_derived_kernels(a) && is_finite(a) && !a.bound(0).masked) out[0] = {1, true};
}

// The same, and 0 for a row that is -inf everywhere.
void safe_softmax(A a, Results out) {
  if (uses_derived_kernels(a) && is_finite(a)) out[0] = {1, true};
}

// x - max x - log of the sum of n exponentials, of which one is 1: cpu/SoftMaxKernel.cpp, cpu/LogSoftmaxKernelImpl.h.
// The host adds them up in float, and stores the sum in the dtype of x: in float16, 65,520 ones are infinite.
void log_softmax(A a, Results out) {
  if (!uses_derived_kernels(a)) return;
  const auto n = static_cast<double>(a.size(0, a.integer(1, 0)));
  const Value of_exponentials = sum(taken_into(a.sums(), exactly(1)), n);
  if (a.uses_kernels_of(Kernels::kHost) && !taken_into(a.range(), of_exponentials).known()) return;
  const Value x = a[0];
  const Value log_of_sum = exactly(std::log(n + 1));
  out[0] = x - x - log_of_sum;
}

// y (g - sum g y), with y <= 1 if it comes from softmax. Its sum is 1 too, but only along the dimension of the forward
// pass, which the call does not show.
void softmax_backward(A a, Results out) {
  const Value g = a[0];
  const Value y = a[1];
  const Value total = sum(g * y, static_cast<double>(a.size(1, a.integer(2, 0))));
  const Value apart = g - total;
  out[0] = either(y * apart, y * g - y * total);
}

// g - e^y sum g, with y <= 0 if it comes from log_softmax.
void log_softmax_backward(A a, Results out) {
  if (!a.produced_by(1, "aten::_log_softmax")) return;
  out[0] = a[0] - sum(a[0], static_cast<double>(a.size(0, a.integer(2, 0))));
}

}  // namespace

void add_softmax_rules(RuleTable& table) {
  table["_softmax"] = softmax;
  table["_safe_softmax"] = safe_softmax;
  table["_log_softmax"] = log_softmax;
  table["_softmax_backward_data"] = softmax_backward;
  table["_log_softmax_backward_data"] = log_softmax_backward;
}

}  // namespace torchnan
