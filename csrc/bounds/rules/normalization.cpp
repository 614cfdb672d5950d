// Layer, group and batch normalisation.
//
// y = (x - mean) r, with r = 1 / sqrt(var + eps), over n elements. In exact arithmetic |y| <= sqrt(n), as the y of one
// group have squares that add up to n at most. But the mean is rounded: off by some e |x|, and if the true deviations
// are smaller than that, then r can be as large as 1 / sqrt(eps), and y as e |x| / sqrt(eps).
#include <algorithm>
#include <cmath>

#include "bounds/dtype_range.h"
#include "bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;

// Squares of x are added up.
constexpr double kMaySquare = 1e15;

// How far a mean of n may be off, in units of epsilon |x|: blocks of it are running sums. Also of x r - mean r.
double rounding_of_mean(double n) { return 64 + 4 * std::sqrt(n); }

// |y| before weight and bias, if r is at most `most_r`.
double normalised(A a, double n, double x, double most_r) {
  return 1.1 * std::sqrt(n) + rounding_of_mean(n) * a.epsilon() * x * most_r;
}

// The range of what they compute in: 16 bits are widened.
DtypeRange range_of_sums(A a) {
  return range_of(a.dtype() == c10::ScalarType::Double ? c10::ScalarType::Double : c10::ScalarType::Float);
}

// What a product of two of these factors may be off by where it is subnormal, in the third.
double off_by(A a, double largest_factor) { return range_of_sums(a).step * largest_factor; }

double weight_of(A a, size_t i) { return a.has_value(i) ? a.max_abs(i) : 1; }

double one_over_root(double eps) { return eps > 0 ? 1 / std::sqrt(eps) : RuleArguments::kUnknown; }

// What (x - mean) r weight + bias takes on the way: kernels multiply r and the weight first, and x by either; r is kept
// in the dtype of x.
bool can_be_scaled(A a, double x, double r, double weight) {
  const double factor = r * largest({1, weight});
  return factor < a.limit() && (1 + 2 * x) * factor < range_of_sums(a).limit;
}

// y, mean, r of n elements each.
void normalise(A a, double n, double weight, double bias, double eps, Results out) {
  const double x = a.max_abs(0);
  if (!(x < kMaySquare && x < a.limit())) return;
  const double r = one_over_root(eps);
  const double off = off_by(a, largest({2 * x, r, weight}));
  if (can_be_scaled(a, x, r, weight)) out[0] = {normalised(a, n, x, r) * weight + bias + off};
  out[1] = mean_of(a, n, x);
  out[2] = {r, true};
}

// What a backward pass is given and makes of it again.
struct Statistics {
  double n;  // elements in a group
  double x;
  double r;
  double apart;   // |x - mean| r, if nothing cancels
  double y;       // the same, if mean and r are those of x: then it is within sqrt(n)
  double mean_y;  // of |y|: then within 1, as that of y^2 is
  double weight = 1;
  double rows = 1;  // that a weight is shared by
};

Statistics recomputed(A a, double n, double x, double mean, double r, bool of_x) {
  const double apart = (x + mean) * r;
  if (!of_x) return {n, x, r, apart, apart, apart};
  const double off = rounding_of_mean(n) * a.epsilon() * x * r;
  return {n, x, r, apart, std::min(apart, normalised(a, n, x, r)), 1.1 + off};
}

// Into x: r (g w - mean(g w) - y mean(g w y)). Into the weight: a sum of g y; into the bias: of g. Multiplied out, as
// kernels do it, that takes sums of g w x and the third power of r on the way, and terms of g w x^2 r^3 cancel but for
// their rounding.
void normalise_backward(A a, const Statistics& s, Results out) {
  const double g = a.max_abs(0);
  const double gw = g * s.weight;
  const double cube = s.r * s.r * s.r;
  const double cancels = gw * s.r * s.apart * s.apart;
  const double intermediate = largest({cube, (s.rows + s.n * (1 + cube)) * largest({g, gw}) * (1 + s.x), cancels});
  if (!(intermediate < a.limit())) return;
  const double rounding = rounding_of_mean(s.n) * a.epsilon() * cancels;
  out[0] = {a.sum_of(1, s.r * gw * (2 + s.y * s.mean_y) + rounding)};
  out[1] = {a.sum_of(s.rows, g * s.y)};
  out[2] = {a.sum_of(s.rows, g)};
}

// native_layer_norm(x, shape, weight, bias, eps)
void layer_norm(A a, Results out) {
  normalise(a, product(a.integers(1)), weight_of(a, 2), a.max_abs(3), a.number(4, 0), out);
}

// native_layer_norm_backward(g, x, shape, mean, r, weight, bias, mask)
void layer_norm_backward(A a, Results out) {
  const double n = product(a.integers(2));
  const bool of_x = a.produced_by(3, "aten::native_layer_norm") && a.produced_by(4, "aten::native_layer_norm");
  Statistics s = recomputed(a, n, a.max_abs(1), a.max_abs(3), a.max_abs(4), of_x);
  s.weight = weight_of(a, 5);
  s.rows = static_cast<double>(a.numel(1)) / std::max(n, 1.0);
  normalise_backward(a, s, out);
}

// native_group_norm(x, weight, bias, N, C, HxW, group, eps)
void group_norm(A a, Results out) {
  const double n = static_cast<double>(a.numel(0)) / static_cast<double>(a.integer(3, 1) * a.integer(6, 1));
  normalise(a, n, weight_of(a, 1), a.max_abs(2), a.number(7, 0), out);
}

// native_group_norm_backward(g, x, mean, r, weight, N, C, HxW, group, mask)
void group_norm_backward(A a, Results out) {
  const double n = static_cast<double>(a.numel(1)) / static_cast<double>(a.integer(5, 1) * a.integer(8, 1));
  const bool of_x = a.produced_by(2, "aten::native_group_norm") && a.produced_by(3, "aten::native_group_norm");
  Statistics s = recomputed(a, n, a.max_abs(1), a.max_abs(2), a.max_abs(3), of_x);
  s.weight = weight_of(a, 4);
  s.rows = static_cast<double>(a.integer(5, 1) * a.integer(7, 1));
  normalise_backward(a, s, out);
}

// native_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps). In evaluation with the
// running statistics.
void batch_norm(A a, Results out) {
  if (a.flag(5)) {
    normalise(a, elements_per(a, 0, 1), weight_of(a, 1), a.max_abs(2), a.number(7, 0), out);
    return;
  }
  if (!a.has_value(3) || !a.has_value(4)) return;
  const double variance = a.min_value(4);
  if (!(variance > 0)) return;  // not known, or below zero, of which the root is NaN
  const double r = one_over_root(variance + std::max(0.0, a.number(7, 0)));
  const double apart = a.max_abs(0) + a.max_abs(3);
  const double weight = weight_of(a, 1);
  if (!can_be_scaled(a, apart, r, weight)) return;
  out[0] = {a.sum_of(1, apart * r * weight + off_by(a, largest({apart, r, weight}))) + a.max_abs(2)};
}

// native_batch_norm_backward(g, x, weight, running_mean, running_var, mean, r, train, eps, mask)
void batch_norm_backward(A a, Results out) {
  if (!a.flag(7)) return;
  const bool of_x = a.produced_by(5, "aten::native_batch_norm") && a.produced_by(6, "aten::native_batch_norm");
  const double n = elements_per(a, 1, 1);
  Statistics s = recomputed(a, n, a.max_abs(1), a.max_abs(5), a.max_abs(6), of_x);
  s.weight = weight_of(a, 2);
  s.rows = n;
  normalise_backward(a, s, out);
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
