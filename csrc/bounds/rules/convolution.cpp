// Convolutions and pooling: sums and maxima over windows.
#include <algorithm>
#include <cmath>

#include "bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;

// Fast algorithms (Winograd) add up multiples of their inputs on the way, some 2^16 times the result.
constexpr double kMaxIntermediate = 0x1p80;
constexpr double kFastAlgorithms = 2;

double bounded(double max_abs) {
  return max_abs < kMaxIntermediate ? kFastAlgorithms * max_abs : RuleArguments::kUnknown;
}

// oneDNN, in 16 bits, now and then reads memory that nobody has written (PyTorch 2.13): no bound holds.
bool is_reliable(A a) { return a.unit_roundoff() <= 0x1p-24; }

// convolution(x, weight, bias, ..., 6: transposed, ...): each output is a sum over the weights of one output channel;
// transposed, of one input channel of the weight at most.
void convolution(A a, Results out) {
  if (!is_reliable(a)) return;
  const double terms = elements_per(a, 1, a.flag(6) ? 1 : 0);
  out[0] = {bounded(a.sum_of(terms, a.max_abs(0) * a.max_abs(1))) + a.max_abs(2)};
}

// convolution_backward(g, x, weight, ...): to x through the weights of one channel; to a weight from every position of
// g, transposed of x; to the bias from every position of g.
void convolution_backward(A a, Results out) {
  if (!is_reliable(a)) return;
  const double g = a.max_abs(0);
  const double through = largest({elements_per(a, 2, 0), elements_per(a, 2, 1)});
  const double positions = elements_per(a, 0, 1);
  const double shared = largest({positions, elements_per(a, 1, 1)});
  out[0] = {bounded(a.sum_of(through, g * a.max_abs(2)))};
  out[1] = {bounded(a.sum_of(shared, g * a.max_abs(1)))};
  out[2] = {a.sum_of(positions, g)};
}

// The most windows that an element lies in: as many as a window has elements. One number stands for every dimension.
double window(A a, size_t kernel_size, int64_t dims) {
  const auto kernel = a.integers(kernel_size);
  return kernel.size() == 1 ? std::pow(product(kernel), static_cast<double>(dims)) : product(kernel);
}

// avg_pool2d(x, kernel, stride, padding, ceil_mode, count_include_pad, divisor): a mean; with a divisor of the
// program's own, a sum over it.
void avg_pool(A a, Results out) {
  if (!a.has_value(6)) out[0] = mean_of(a, window(a, 1, 2), a.max_abs(0), a.nonnegative(0));
}

// _adaptive_avg_pool2d(x, output_size): means of windows, each of the plane at most.
void adaptive_pool(A a, Results out) {
  out[0] = mean_of(a, static_cast<double>(a.size(0, -1) * a.size(0, -2)), a.max_abs(0), a.nonnegative(0));
}

// Each gradient goes to one element of its window (max), or a part of it to each (mean).
template <int64_t kDims>
void pool_backward(A a, Results out) {
  out[0] = {a.sum_of(window(a, 2, kDims), a.max_abs(0))};
}

// avg_pool2d_backward(..., 7: divisor)
void avg_pool_backward(A a, Results out) {
  if (!a.has_value(7)) pool_backward<2>(a, out);
}

// _adaptive_avg_pool2d_backward(g, x): an element may lie in every window of its plane, and gets a part of each.
void adaptive_pool_backward(A a, Results out) {
  out[0] = {a.sum_of(static_cast<double>(a.size(0, -1) * a.size(0, -2)), a.max_abs(0))};
}

}  // namespace

void add_convolution_rules(RuleTable& table) {
  table["convolution"] = convolution;
  table["convolution_backward"] = convolution_backward;
  for (const char* name : {"max_pool2d_with_indices", "max_pool3d_with_indices"}) table[name] = same_bound;
  table["_adaptive_avg_pool2d"] = adaptive_pool;
  table["avg_pool2d"] = avg_pool;
  table["max_pool2d_with_indices_backward"] = pool_backward<2>;
  table["max_pool3d_with_indices_backward"] = pool_backward<3>;
  table["avg_pool2d_backward"] = avg_pool_backward;
  table["_adaptive_avg_pool2d_backward"] = adaptive_pool_backward;
}

}  // namespace torchnan
