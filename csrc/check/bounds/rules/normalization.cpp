// Layer, group and batch normalisation.
//
// y = (x - mean) r, with r = 1 / sqrt(var + eps), over n elements. In exact arithmetic |y| <= sqrt(n), because the
// squares of the y of one group add up to at most n. But the mean is rounded and off by some e |x|. If the true
// deviations are smaller than that, r can be as large as 1 / sqrt(eps), and y as large as e |x| / sqrt(eps).
//
// Kernels evaluate the formulas in different orders, and each is written down here: cpu/layer_norm_kernel.cpp,
// cpu/group_norm_kernel.cpp, cpu/batch_norm_kernel.cpp, Normalization.cpp, cuda/layer_norm_kernel.cu,
// cuda/Normalization.cuh. They convert 16-bit types to float, except batch norm of a non-contiguous tensor.
#include <algorithm>
#include <cmath>

#include "check/bounds/dtype_range.h"
#include "check/bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;

// NVIDIA's kernels convert 16-bit types to float, and keep the mean in float.
bool may_compute_in_16_bits(A a) { return has_16_bits(a) && a.uses_kernels_of(Kernels::kHost); }

// How far the mean that a kernel subtracts may be from the one that its variance belongs to, in units of roundoff of
// |x|, if all roundings go the same way. A running mean of k numbers is off by about k / 2 roundings then: its step j
// leaves 1 - 1 / j of the error before it.
//
//   CPU, layer norm; group norm, contiguous   chunks of 16 vectors, in a tree: less than 64   RowwiseMoments()
//   CPU, batch norm                           none: the variance is that of the stored mean, which is rounded once
//   CPU, group norm, channels_last            in one pass: see normalised()
//   CUDA                                      a thread of at least 128 takes n / 128 numbers: n / 256
double rounding_of_mean(double n) { return 64 + std::max(4 * std::sqrt(n), n / 256); }

// Returns the sum of n numbers, which are rounded at most `roundings` times each, on average. All roundings may go the
// same way: each partial sum is off by u times its size at most, and a number is part of as many partial sums as it is
// rounded.
Value rounded_sum(const Value& x, double n, double roundings) {
  if (x.masked || x.in == nullptr) return sum(x, n);
  const double largest = n * x.max_abs * growth_of_sum(n, *x.in);
  return detail::rounded(x, x, largest, 0, n * x.error + largest * x.in->unit * roundings, x.nonnegative);
}

// How often each of n adjacent numbers is rounded in their sum, on average. The host has a running sum in each lane of
// a vector, at least 4 in float and 2 in double; it adds up the lanes, 64 at most, and a rest that fills no vector.
// Layer norm: map3_reduce_all(). Group norm: in a plane of a channel, ComputeInternalGradients(), then over the D
// channels of a group, CalcDsDb() and a rest, where each number is rounded D times at most. A warp of NVIDIA's has 32
// lanes.
//
// Group norm was derived from group_norm_kernel.cpp as of revision d684b9b18b87 of cyyever/pytorch, the newest that
// could be read, where all sums are in at::opmath_type. Its path for channels_last adds one row after the other, HxW in
// all, and the sums of at most as many threads: no number is rounded more than n = D HxW times.
double roundings_in_lanes(A a, double n) { return (a.sums().unit < 0x1p-24 ? n / 4 : n / 8) + 64; }

// Bound of |(x - mean) r| for the computed mean and r, with a mean that is rounded to a dtype.
//
// In one pass, a kernel adds up x and x^2 in running sums, and computes var = mean(x^2) - mean^2, at least 0. With the
// roundoff u, each mean may be off by n u times its largest term, because the roundings may all go one way. So a
// variance of 3 n u x^2 may be lost. If it is that of one element alone, this is off by sqrt(n) times its root.
double normalised(double n, double x, double r, const DtypeRange& of_mean, bool in_one_pass = false) {
  const double off = in_one_pass ? 2 * (n + 4) * std::sqrt(of_mean.unit) : rounding_of_mean(n) * of_mean.unit;
  return 1.1 * std::sqrt(n) + off * x * r;
}

// x - mean and r, with a bound of |(x - mean) r|.
struct Normalised {
  Value x;
  Value mean;
  Value r;
  double bound = Value::kUnknown;
};

Normalised widened(A a, const Normalised& y) {
  return {taken_into(a.sums(), y.x), taken_into(a.sums(), y.mean), taken_into(a.sums(), y.r), y.bound};
}

// (x - mean) r weight + bias, or x (r weight) + (bias - mean r weight)
Value scaled(const Normalised& y, const Value& weight, const Value& bias) {
  const Value in_order = at_most(y.bound, either((y.x - y.mean) * y.r, y.x * y.r - y.mean * y.r)) * weight + bias;
  const Value factor = y.r * weight;
  const Value multiplied_out = y.x * factor + (bias - y.mean * factor);
  return either(in_order, at_most(y.bound * weight.max_abs + bias.max_abs, multiplied_out));
}

Value scaled_in_each_type(A a, const Normalised& y, size_t weight, size_t bias) {
  const Value w = a.scalar(weight, 1);
  const Value b = a.scalar(bias, 0);
  const Value in_sums = scaled(widened(a, y), taken_into(a.sums(), w), taken_into(a.sums(), b));
  return may_compute_in_16_bits(a) ? either(in_sums, scaled(y, w, b)) : in_sums;
}

// Sets y, mean and r of n elements each.
void normalise(A a, double n, size_t x, size_t weight, size_t bias, size_t eps, const DtypeRange& of_mean, Results out,
               bool in_one_pass = false) {
  const Value wide = a.widened(x);
  const Value centre = mean(wide, n);
  Value variance = mean(square(wide - centre), n);
  variance.min_abs = 0;
  const Value r = taken_into(a.range(), exactly(1) / sqrt(variance + a.widened_scalar(eps)));
  if (!r.known()) return;
  // The bound of y holds for the computed mean and r, however far they are from the exact ones.
  Normalised y{a[x], taken_into(a.range(), centre), r, normalised(n, wide.max_abs, r.max_abs, of_mean, in_one_pass)};
  y.mean.error = y.r.error = 0;
  out[0] = scaled_in_each_type(a, y, weight, bias);
  out[1] = y.mean;
  out[2] = r;
}

// Whether mean and r are those of x, the argument 1 of each backward pass.
bool describes(A a, std::string_view forward, size_t mean, size_t r) {
  return a.describes(mean, forward, {1}) && a.describes(r, forward, {1});
}

// The arguments of a backward pass.
struct Backward {
  Value g;
  Value weight;
  Normalised y;
  double mean_y;         // mean of |y|
  double n;              // elements in a group
  double roundings = 0;  // of each element in the sum of a group, on average
  double rows = 1;       // rows that share a weight
};

struct Gradients {
  Value x;
  Value weight;
  Value bias;
};

// If `of_x`, mean and r are those of x: then y is within sqrt(n), and the mean of |y| within 1, like that of y^2.
Backward given(A a, size_t g, size_t x, size_t mean, size_t r, size_t weight, double n, bool of_x,
               const DtypeRange& of_mean, bool in_one_pass = false) {
  Backward given{a[g], a.scalar(weight, 1), {a[x], a[mean], a[r]}, 0, n, n};
  const double apart = (given.y.x.max_abs + given.y.mean.max_abs) * given.y.r.max_abs;
  const double close = normalised(n, given.y.x.max_abs, given.y.r.max_abs, of_mean, in_one_pass);
  given.y.bound = of_x ? std::min(apart, close) : apart;
  given.mean_y = of_x ? std::min(apart, 1.1 + close - 1.1 * std::sqrt(n)) : apart;
  return given;
}

Backward widened(A a, const Backward& s) {
  return {
      taken_into(a.sums(), s.g), taken_into(a.sums(), s.weight), widened(a, s.y), s.mean_y, s.n, s.roundings, s.rows};
}

// Gradient of x: r (g w - mean(g w) - y mean(g w y)). Gradient of the weight: a sum of g y; of the bias: a sum of g.
Gradients within_exact_bounds(const Backward& s, const Value& x, const Value& weight) {
  const double g = s.g.max_abs;
  return {at_most(s.y.r.max_abs * g * s.weight.max_abs * (2 + s.y.bound * s.mean_y), x),
          at_most(s.rows * g * s.y.bound, weight), sum(s.g, s.rows)};
}

// Multiplied out, as layer and group norm do: r g w + b x + c.
Gradients multiplied_out(const Backward& s) {
  const auto& [x, mean, r, bound] = s.y;
  const Value gw = s.g * s.weight;
  const auto total = [&](const Value& terms) { return rounded_sum(terms, s.n, s.roundings); };
  const Value of_gx = either(total(gw * x), total(s.g * x) * s.weight);
  const Value of_g = either(total(gw), total(s.g) * s.weight);
  const Value n = exactly(s.n);
  const Value b = (of_g * mean - of_gx) * r * r * r / n;
  const Value c = -b * mean - of_g * r / n;
  const Value into_x = either(r * gw, r * s.g * s.weight, r * s.weight * s.g) + b * x + c;
  const Value per_row = sum(s.g * (x * r - mean * r), s.rows);
  const Value per_sum = (sum(s.g * x, s.rows) - sum(s.g, s.rows) * mean) * r;
  return within_exact_bounds(s, into_x, either(per_row, per_sum));
}

// From the deviations, like layer norm on GPUs.
Gradients by_normalised(const Backward& s) {
  const Value gw = s.g * s.weight;
  const Value y = at_most(s.y.bound, (s.y.x - s.y.mean) * s.y.r);
  const Value n = exactly(s.n);
  const Value of_gy = at_most(s.n * gw.max_abs * s.mean_y, sum(gw * y, s.n));
  const Value into_x = (gw * n - y * of_gy - sum(gw, s.n)) * (s.y.r / n);
  return within_exact_bounds(s, into_x, sum(s.g * y, s.rows));
}

// From the deviations, like batch norm: (g - mean g - (x - mean) k) r w, with k from the sum of (x - mean) g.
Gradients by_deviations(const Backward& s) {
  const auto& [x, mean, r, bound] = s.y;
  const Value apart = x - mean;
  const Value n = exactly(s.n);
  const Value product = sum(apart * s.g, s.n);
  const Value rest = s.g - sum(s.g, s.n) / n - apart * (product * r * r / n);
  return within_exact_bounds(s, either(rest * r * s.weight, rest * (r * s.weight)), product * r);
}

void set(const Gradients& gradients, Results out) {
  out[0] = gradients.x;
  out[1] = gradients.weight;
  out[2] = gradients.bias;
}

// Layer and group norm compute in float, and store intermediate sums in the dtype of x.
void multiply_out(A a, const Backward& s, Results out) {
  if (has_16_bits(a) && !multiplied_out(s).x.known()) return;
  set(multiplied_out(widened(a, s)), out);
}

// native_layer_norm(x, shape, weight, bias, eps)
void layer_norm(A a, Results out) {
  if (uses_derived_kernels(a)) normalise(a, product(a.integers(1)), 0, 2, 3, 4, a.sums(), out);
}

// native_layer_norm_backward(g, x, shape, mean, r, weight, bias, mask)
void layer_norm_backward(A a, Results out) {
  if (!uses_derived_kernels(a)) return;
  if (!a.is_contiguous(3) || !a.is_contiguous(4)) return;  // the kernel reads other memory (PyTorch 2.13)
  const double n = product(a.integers(2));
  const bool of_x = describes(a, "aten::native_layer_norm", 3, 4);
  Backward s = given(a, 0, 1, 3, 4, 5, n, of_x, a.sums());
  s.rows = static_cast<double>(a.numel(1)) / std::max(n, 1.0);
  s.roundings = std::min(n, roundings_in_lanes(a, n));
  if (a.uses_kernels_of(Kernels::kNvidia)) return set(by_normalised(widened(a, s)), out);
  multiply_out(a, s, out);
}

// Whether the planes of x are contiguous, as the kernels of group norm decide.
bool is_planar(A a, size_t x) { return a.tensor(x)->suggest_memory_format() == at::MemoryFormat::Contiguous; }

// Whether group norm of x takes the host's path for channels_last.
bool in_one_pass(A a, size_t x) { return a.uses_kernels_of(Kernels::kHost) && !is_planar(a, x); }

// native_group_norm(x, weight, bias, N, C, HxW, group, eps)
void group_norm(A a, Results out) {
  if (!uses_derived_kernels(a)) return;
  if (!a.is_contiguous(1) || !a.is_contiguous(2)) return;  // the kernel reads other memory (PyTorch 2.13)
  const double n = static_cast<double>(a.numel(0)) / static_cast<double>(a.integer(3, 1) * a.integer(6, 1));
  if (!(n >= 1)) return;  // r is NaN
  normalise(a, n, 0, 1, 2, 7, a.sums(), out, in_one_pass(a, 0));
}

// native_group_norm_backward(g, x, mean, r, weight, N, C, HxW, group, mask)
void group_norm_backward(A a, Results out) {
  if (!uses_derived_kernels(a) || !a.is_contiguous(2) || !a.is_contiguous(3) || !a.is_contiguous(4)) return;
  const double n = static_cast<double>(a.numel(1)) / static_cast<double>(a.integer(5, 1) * a.integer(8, 1));
  if (!(n >= 1)) return;  // r is NaN
  const bool of_x = describes(a, "aten::native_group_norm", 2, 3);
  Backward s = given(a, 0, 1, 2, 3, 4, n, of_x, a.sums(), in_one_pass(a, 1));
  const auto area = static_cast<double>(a.integer(7, 1));
  s.rows = static_cast<double>(a.integer(5, 1)) * area;
  if (is_planar(a, 1)) s.roundings = std::min(n, roundings_in_lanes(a, area) + n / area);
  multiply_out(a, s, out);
}

// The arithmetic that the mean is rounded in.
const DtypeRange& range_of_mean(A a) { return a.uses_kernels_of(Kernels::kNvidia) ? a.sums() : a.range(); }

// native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps). It normalizes with the
// running statistics unless it is training.
void batch_norm(A a, Results out) {
  if (!uses_derived_kernels(a)) return;
  if (a.flag(5)) return normalise(a, elements_per(a, 0, 1), 0, 1, 2, 7, range_of_mean(a), out);
  if (!a.has_value(3) || !a.has_value(4)) return;
  const Value r = exactly(1) / sqrt(a.divisor(4) + a.widened_scalar(7));
  out[0] = scaled_in_each_type(a, {a[0], a[3], taken_into(a.range(), r)}, 1, 2);
}

// native_batch_norm_backward(g, x, weight, running_mean, running_var, mean, r, train, eps, mask)
void batch_norm_backward(A a, Results out) {
  if (!a.flag(7) || !uses_derived_kernels(a)) return;
  const bool of_x = describes(a, "aten::native_batch_norm", 5, 6);
  Backward s = given(a, 0, 1, 5, 6, 2, elements_per(a, 1, 1), of_x, range_of_mean(a));
  s.rows = s.n;
  const Gradients wide = by_deviations(widened(a, s));
  if (!may_compute_in_16_bits(a)) return set(wide, out);
  const Gradients narrow = by_deviations(s);
  set({either(wide.x, narrow.x), either(wide.weight, narrow.weight), either(wide.bias, narrow.bias)}, out);
}

}  // namespace

void add_normalization_rules(RuleTable& table) {
  table["native_layer_norm"] = layer_norm;
  table["native_layer_norm_backward"] = layer_norm_backward;
  table["native_group_norm"] = group_norm;
  table["native_group_norm_backward"] = group_norm_backward;
  table["native_batch_norm"] = batch_norm;
  table["native_batch_norm_backward"] = batch_norm_backward;
}

}  // namespace torchnan
