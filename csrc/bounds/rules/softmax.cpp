// Softmax and its kin. The largest exponential is e^0 = 1, so the sum is at least that, whatever x is.
#include <cmath>

#include "bounds/dtype_range.h"
#include "bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;

// But for a mask.
bool is_finite(A a) { return a.bound(0).known() && a.bound(0).max_abs <= largest_number(a.dtype()); }

// x - max x, which is taken first, may be twice as large as x.
bool can_be_shifted(A a) { return a.bound(0).max_abs < a.limit(); }

// 0 <= softmax <= 1, as long as x is finite: x - max x may be -inf, as of a mask of the lowest numbers, whose
// exponential is 0. Of -inf alone it is NaN.
void softmax(A a, Results out) {
  if (is_finite(a) && !a.bound(0).masked) out[0] = {1, true};
}

// The same, and 0 for a row of -inf alone.
void safe_softmax(A a, Results out) {
  if (is_finite(a)) out[0] = {1, true};
}

// |x - max x - log sum| <= 2 |x| + log n
void log_softmax(A a, Results out) {
  if (can_be_shifted(a)) out[0] = {2 * a.max_abs(0) + std::log(static_cast<double>(a.size(0, a.integer(1, 0))) + 1)};
}

// y (g - sum g y): with y from softmax its sum is 1, and |.| <= 2 |g|; otherwise the sum is n |g| |y| at most.
void softmax_backward(A a, Results out) {
  const double g = a.max_abs(0);
  const double y = a.max_abs(1);
  const bool sums_to_one = a.produced_by(1, "aten::_softmax") || a.produced_by(1, "aten::_safe_softmax");
  const double n = static_cast<double>(a.size(1, a.integer(2, 0)));
  const double apart = g + a.sum_of(n, g * y);
  out[0] = sums_to_one ? Bound{a.sum_of(2, g) * a.sum_of(1, 1)} : by_way_of(apart, {y * apart});
}

// g - e^y sum g, with y <= 0 from log_softmax.
void log_softmax_backward(A a, Results out) {
  if (!a.produced_by(1, "aten::_log_softmax")) return;
  out[0] = {a.sum_of(static_cast<double>(a.size(0, a.integer(2, 0))) + 1, a.max_abs(0))};
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
