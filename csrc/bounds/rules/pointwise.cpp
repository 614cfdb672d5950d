// One output element from one element of each input.
#include <algorithm>
#include <cmath>

#include <c10/util/BFloat16.h>

#include "bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;

// What a formula may square, or cube in float32, on its way to a result that is small again.
constexpr double kMayCube = 1e12;

// |x + alpha y| <= |x| + |alpha| |y|. And -inf + y = -inf, if only one of the two may be -inf.
void add(A a, Results out) {
  const Bound x = a.bound(0);
  const Bound y = a.bound(1);
  const double alpha = a.number(2, 1);
  if ((x.masked && y.masked) || (y.masked && !(alpha > 0))) return;
  out[0] = {x.max_abs + a.magnitude(2, 1) * y.max_abs, x.nonnegative && y.nonnegative && alpha >= 0,
            x.masked || y.masked};
}

// |x - alpha y| <= |x| + |alpha| |y|
void sub(A a, Results out) { out[0] = {a.max_abs(0) + a.magnitude(2, 1) * a.max_abs(1)}; }

// |y - alpha x| <= |alpha| |x| + |y|
void rsub(A a, Results out) { out[0] = {a.magnitude(2, 1) * a.max_abs(0) + a.max_abs(1)}; }

// |x y| = |x| |y|; a square is not negative.
void mul(A a, Results out) {
  out[0] = {a.max_abs(0) * a.max_abs(1), a.same(0, 1) || (a.nonnegative(0) && a.nonnegative(1))};
}

// |x / y| <= |x| / least |y|; rounded to an integer, at most one more.
void div(A a, Results out) {
  const double min_abs = a.min_abs(1);
  if (min_abs > 0) out[0] = {a.max_abs(0) / min_abs + (a.has_value(2) ? 1 : 0), a.nonnegative(0) && a.min_value(1) > 0};
}

// |-x| = |x|
void neg(A a, Results out) { out[0] = {a.max_abs(0)}; }

// |x| >= 0
void abs(A a, Results out) { out[0] = {a.max_abs(0), true}; }

// 0 <= max(x, 0) <= |x|, also for -inf
void relu(A a, Results out) { out[0] = {a.bound(0).max_abs, true}; }

// Either x, or one of the limits.
void clamp(A a, Results out) {
  const bool nonnegative = (a.nonnegative(0) || (a.has_value(1) && a.nonnegative(1))) && a.nonnegative(2);
  out[0] = {largest({a.max_abs(0), a.max_abs(1), a.max_abs(2)}), nonnegative};
}

// hardtanh(x, min=-1, max=1): as clamp.
void hardtanh(A a, Results out) { out[0] = {largest({a.max_abs(0), a.magnitude(1, 1), a.magnitude(2, 1)})}; }

// threshold(x, threshold, value): x or the value.
void threshold(A a, Results out) { out[0] = {largest({a.max_abs(0), a.max_abs(2)})}; }

// |x| or |slope x|
void leaky_relu(A a, Results out) { out[0] = {a.max_abs(0) * largest({1, a.magnitude(1, 0.01)})}; }

// g or slope g
void leaky_relu_backward(A a, Results out) { out[0] = {a.max_abs(0) * largest({1, a.magnitude(2, 0.01)})}; }

// |tanh|, |sin|, |cos|, |erf| <= 1 for every finite x
void at_most_one(A a, Results out) {
  if (a.max_abs(0) < RuleArguments::kUnknown) out[0] = {1};
}

// 0 <= sigmoid <= 1, also of -inf
void sigmoid(A a, Results out) {
  if (a.bound(0).known()) out[0] = {1, true};
}

// 0 < exp(x) <= exp(|x|), and exp(-inf) = 0
void exp(A a, Results out) { out[0] = {std::exp(a.bound(0).max_abs), true}; }

// sqrt is monotone; of what may be negative nothing is known.
void sqrt(A a, Results out) {
  if (a.nonnegative(0)) out[0] = {std::sqrt(a.max_abs(0)), true};
}

// Kernels round p to the dtype of x: to bfloat16 at worst, of which 8 bits are left.
double largest_power(double x, double p) {
  const bool is_exact = p == static_cast<double>(static_cast<c10::BFloat16>(static_cast<float>(p)));
  if (is_exact) return std::pow(x, p);
  return largest({std::pow(x, p * (1 - 0x1p-8)), std::pow(x, p * (1 + 0x1p-8))});
}

// |x|^p is monotone in |x| for p > 0, unless float16 makes zero of p; a negative x has a power only if p is whole, and
// an even one is not negative.
void pow(A a, Results out) {
  const double p = a.number(1, NAN);
  const bool is_whole = p == std::floor(p);
  if (!(p > 0x1p-14) || (!is_whole && !a.nonnegative(0))) return;
  out[0] = {largest_power(a.max_abs(0), p), a.nonnegative(0) || (is_whole && std::fmod(p, 2) == 0)};
}

// One of the two. (max(-inf, y) is y, min is -inf: left to a look.)
void one_of_two(A a, Results out) {
  out[0] = {largest({a.max_abs(0), a.max_abs(1)}), a.nonnegative(0) && a.nonnegative(1)};
}

// where(condition, x, y): x or y.
void where(A a, Results out) { out[0] = {largest({a.max_abs(1), a.max_abs(2)}), a.nonnegative(1) && a.nonnegative(2)}; }

// masked_fill(x, mask, value): x or the value.
void masked_fill(A a, Results out) {
  out[0] = {largest({a.max_abs(0), a.max_abs(2)}), a.nonnegative(0) && a.nonnegative(2)};
}

// x + w (y - x), 0 <= w <= 1: between x and y, |.| <= (1 - w) |x| + w |y|. Rounding y - x is relative to both.
void lerp(A a, Results out) {
  const double w = a.number(2, NAN);
  if (!(w >= 0 && w <= 1)) return;
  const double x = a.max_abs(0);
  const double y = a.max_abs(1);
  const Bound between{(1 - w) * x + w * y + 4 * a.unit_roundoff() * (x + y), a.nonnegative(0) && a.nonnegative(1)};
  out[0] = by_way_of(x + y, between);
}

// |x + v s t| <= |x| + |v| |s| |t|; with s = t and v >= 0, what is added is not negative.
void addcmul(A a, Results out) {
  const double v = a.number(3, 1);
  const bool adds = v >= 0 && (a.same(1, 2) || (a.nonnegative(1) && a.nonnegative(2)));
  const double vs = a.magnitude(3, 1) * a.max_abs(1);
  const double on_the_way = largest({vs, a.max_abs(1) * a.max_abs(2)});
  const double added = product_of(a, a.magnitude(3, 1), a.max_abs(1), a.max_abs(2));
  out[0] = by_way_of(on_the_way, {a.max_abs(0) + added, a.nonnegative(0) && adds});
}

// |x + v s / t| <= |x| + |v| |s / t|, where kernels multiply first. What is subnormal by then is off by a step, which
// the quotient makes larger, or else v does.
void addcdiv(A a, Results out) {
  const double v = a.magnitude(3, 1);
  const double off = v == 1 ? 0 : a.subnormal_step() * largest({v, a.reciprocal(2)});
  out[0] = by_way_of(largest({v, 1}) * a.max_abs(1), {a.max_abs(0) + v * a.quotient(1, 2) + off});
}

// softplus(x, beta=1, threshold=20) <= |x| + ln 2 / beta, and not negative; takes the exponential of the threshold.
void softplus(A a, Results out) {
  const double beta = a.number(1, 1);
  const double threshold = a.number(2, 20);
  if (beta > 0 && threshold >= 0 && threshold <= 80) out[0] = {a.max_abs(0) + 0.7 / beta, true};
}

// |elu(x, alpha=1, scale=1, input_scale=1)| <= |scale| max(|x|, |alpha|) for input_scale >= 0: its e^x is of x < 0
void elu(A a, Results out) {
  if (!(a.number(3, 1) >= 0)) return;
  out[0] = {a.magnitude(2, 1) * largest({a.max_abs(0), a.magnitude(1, 1)})};
}

// A factor between 0 and 1, or one of 0 and 1, times the gradient.
void gradient_or_less(A a, Results out) { out[0] = {a.max_abs(0)}; }

// The slope of gelu is within 1.13, of silu within 1.1; the formula takes x to the third power.
void gradient_of_smooth(A a, Results out) {
  if (a.max_abs(1) < kMayCube) out[0] = {1.2 * a.max_abs(0)};
}

// g (1 - y^2)
void tanh_backward(A a, Results out) {
  const double y = a.max_abs(1);
  out[0] = by_way_of(y * y, {a.max_abs(0) * largest({1, y * y})});
}

// g y (1 - y), in any order
void sigmoid_backward(A a, Results out) {
  const double y = a.max_abs(1);
  const double g = a.max_abs(0);
  out[0] = by_way_of(largest({g, y}) * (1 + y), {g * y * (1 + y)});
}

}  // namespace

void add_pointwise_rules(RuleTable& table) {
  table["add"] = add;
  table["sub"] = sub;
  table["rsub"] = rsub;
  table["mul"] = mul;
  table["div"] = div;
  table["neg"] = neg;
  table["abs"] = abs;
  table["relu"] = relu;
  table["clamp"] = clamp;
  table["clamp_min"] = one_of_two;
  table["clamp_max"] = one_of_two;
  table["hardtanh"] = hardtanh;
  table["threshold"] = threshold;
  table["leaky_relu"] = leaky_relu;
  table["leaky_relu_backward"] = leaky_relu_backward;
  for (const char* name : {"gelu", "silu", "mish"}) table[name] = same_bound;
  for (const char* name : {"tanh", "sin", "cos", "erf"}) table[name] = at_most_one;
  table["sigmoid"] = sigmoid;
  table["hardsigmoid"] = sigmoid;
  table["exp"] = exp;
  table["sqrt"] = sqrt;
  table["pow"] = pow;
  table["maximum"] = one_of_two;
  table["minimum"] = one_of_two;
  table["where"] = where;
  table["masked_fill"] = masked_fill;
  table["lerp"] = lerp;
  table["addcmul"] = addcmul;
  table["addcdiv"] = addcdiv;
  table["softplus"] = softplus;
  table["elu"] = elu;
  table["threshold_backward"] = gradient_or_less;
  table["hardtanh_backward"] = gradient_or_less;
  table["hardsigmoid_backward"] = gradient_or_less;
  table["gelu_backward"] = gradient_of_smooth;
  table["silu_backward"] = gradient_of_smooth;
  table["tanh_backward"] = tanh_backward;
  table["sigmoid_backward"] = sigmoid_backward;
}

}  // namespace torchnan
