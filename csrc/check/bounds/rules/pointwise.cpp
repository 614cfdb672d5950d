// One output element from one element of each input.
#include <algorithm>
#include <cmath>

#include <c10/util/BFloat16.h>

#include "check/bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;

// The square of a larger input may overflow in float32 on the way to a small result. Its cube may: tanh and erf of an
// infinity are 1.
constexpr double kMaySquare = 1e18;

// x + alpha y. At most one of two masks may be -inf. cpu/BinaryOpsKernel.cpp
void add(A a, Results out) { out[0] = a[0] + a.scalar(2, 1) * a[1]; }

void sub(A a, Results out) { out[0] = a[0] - a.scalar(2, 1) * a[1]; }

void rsub(A a, Results out) { out[0] = a[1] - a.scalar(2, 1) * a[0]; }

void mul(A a, Results out) { out[0] = a.same(0, 1) ? square(a[0]) : a[0] * a[1]; }

// x / y, or x times 1 / y; rounded to an integer, it is at most one more.
void div(A a, Results out) {
  const Value x = a[0];
  const Value y = a.divisor(1);
  const Value quotient = either(x / y, x * (exactly(1) / y));
  out[0] = a.has_value(2) ? quotient + exactly(1) : quotient;
}

void neg(A a, Results out) { out[0] = -a[0]; }

// |x| >= 0
void abs(A a, Results out) { out[0] = {a.max_abs(0), true}; }

// Whether max(x, 0) is nonnegative. While subnormal numbers are flushed, vectors of bfloat16 compare a negative one as
// 0 and keep its bits, and its root is NaN once they are not flushed. In other types the maximum is -0.
bool drops_negative_subnormals(A a) { return a.dtype() != c10::ScalarType::BFloat16; }

// 0 <= max(x, 0) <= |x|, also for -inf
void relu(A a, Results out) { out[0] = {a.bound(0).max_abs, a.nonnegative(0) || drops_negative_subnormals(a)}; }

// Either x, or one of the limits.
void clamp(A a, Results out) {
  const bool is_cut = a.has_value(1) && a.nonnegative(1) && drops_negative_subnormals(a);
  const bool nonnegative = (a.nonnegative(0) || is_cut) && a.nonnegative(2);
  out[0] = {std::max({a.max_abs(0), a.max_abs(1), a.max_abs(2)}), nonnegative};
}

// hardtanh(x, min=-1, max=1): as clamp.
void hardtanh(A a, Results out) { out[0] = {std::max({a.max_abs(0), a.scalar(1, 1).max_abs, a.scalar(2, 1).max_abs})}; }

// threshold(x, threshold, value): x or the value.
void threshold(A a, Results out) { out[0] = {std::max(a.max_abs(0), a.max_abs(2))}; }

// leaky_relu(x, slope=0.01), leaky_relu_backward(g, x, slope): x or slope x.
template <size_t Slope>
void leaky(A a, Results out) {
  out[0] = either(a[0], a[0] * a.scalar(Slope, 0.01));
}

// |tanh|, |sin|, |cos|, |erf| <= 1 for every finite x
void at_most_one(A a, Results out) {
  if (a.max_abs(0) < RuleArguments::kUnknown) out[0] = {1};
}

// 0 <= sigmoid <= 1, also for -inf
void sigmoid(A a, Results out) {
  if (a.bound(0).known()) out[0] = {1, true};
}

void exponential(A a, Results out) { out[0] = exp(a[0]); }

void root(A a, Results out) { out[0] = sqrt(a[0]); }

// Kernels round p to the dtype of x: at worst to bfloat16, which keeps 8 bits.
double largest_power(double x, double p) {
  const bool is_exact = p == static_cast<double>(static_cast<c10::BFloat16>(static_cast<float>(p)));
  if (is_exact) return std::pow(x, p);
  return std::max(std::pow(x, p * (1 - 0x1p-8)), std::pow(x, p * (1 + 0x1p-8)));
}

// |x|^p is monotone in |x| for p > 0, unless float16 rounds p to zero. A negative x has a power only if p is an
// integer; an even power is nonnegative.
void pow(A a, Results out) {
  const double p = a.number(1, NAN);
  const bool is_whole = p == std::floor(p);
  if (!(p > 0x1p-14) || (!is_whole && !a.nonnegative(0))) return;
  out[0] = {largest_power(a.max_abs(0), p), a.nonnegative(0) || (is_whole && std::fmod(p, 2) == 0)};
}

// One of the two. (max(-inf, y) is y, min is -inf: such results are scanned.)
void one_of_two(A a, Results out) {
  out[0] = {std::max(a.max_abs(0), a.max_abs(1)), a.nonnegative(0) && a.nonnegative(1)};
}

// where(condition, x, y): x or y.
void where(A a, Results out) { out[0] = {std::max(a.max_abs(1), a.max_abs(2)), a.nonnegative(1) && a.nonnegative(2)}; }

// masked_fill(x, mask, value): x or the value.
void masked_fill(A a, Results out) {
  out[0] = {std::max(a.max_abs(0), a.max_abs(2)), a.nonnegative(0) && a.nonnegative(2)};
}

// x + w (y - x), or y - (y - x) (1 - w); for 0 <= w <= 1 between x and y. Lerp.h
void lerp(A a, Results out) {
  const double w = a.number(2, NAN);
  if (!(w >= 0 && w <= 1)) return;
  const Value x = a[0];
  const Value y = a[1];
  const Value apart = y - x;
  const Value between = either(x + a.as_scalar(w) * apart, y - apart * a.as_scalar(1 - w));
  out[0] = at_most((1 - w) * x.max_abs + w * y.max_abs, between);
  out[0].nonnegative = x.nonnegative && y.nonnegative;
}

// x + v s t. PointwiseOps.cpp multiplies from the left; other kernels s and t first.
void addcmul(A a, Results out) {
  const Value v = a.scalar(3, 1);
  const Value s = a[1];
  const Value t = a[2];
  Value added = v.is_one() ? s * t : either(v * s * t, v * (s * t));
  if (a.same(1, 2)) added.nonnegative = v.nonnegative;
  out[0] = a[0] + added;
}

// x + v s / t. A subnormal product v s is off by up to one step, which the division or v may enlarge.
void addcdiv(A a, Results out) {
  const Value v = a.scalar(3, 1);
  const Value quotient = v * a.quotient(1, 2);
  if (v.is_one()) {
    out[0] = a[0] + quotient;
    return;
  }
  Value step = a.reciprocal(2);
  step.max_abs = a.range().step * std::max(v.max_abs, step.max_abs);
  Value divided = quotient + step;
  divided.intermediate = std::max(divided.intermediate, (v * a[1]).max_abs);
  out[0] = a[0] + divided;
}

// softplus(x, beta=1, threshold=20): log(1 + e^(beta x)) / beta up to the threshold of beta x, and then x.
// cpu/Activation.cpp
void softplus(A a, Results out) {
  const double threshold = a.number(2, 20);
  if (!(a.scalar(1, 1).nonnegative && threshold >= 0 && threshold <= 80)) return;
  const Value log_of_two = exactly(0.7);
  Value x = a[0];
  x.nonnegative = true;  // the result is at least 0
  out[0] = x + log_of_two / a.scalar(1, 1);
}

// elu(x, alpha=1, scale=1, input_scale=1): scale x, or scale alpha (e^(input_scale x) - 1) of x < 0. cpu/Elu.h
void elu(A a, Results out) {
  if (!a.scalar(3, 1).is_positive()) return;  // 0 * -inf is NaN
  const Value scale = a.scalar(2, 1);
  out[0] = either(a[0] * scale, a.scalar(1, 1) * scale);
}

// A factor between 0 and 1, or one of 0 and 1, times the gradient.
void gradient_or_less(A a, Results out) { out[0] = {a.max_abs(0)}; }

// The slope of gelu is within 1.13, of silu within 1.1. cpu/Activation.cpp, cuda/ActivationGeluKernel.cu
void gradient_of_smooth(A a, Results out) {
  if (a.max_abs(1) < kMaySquare) out[0] = {1.2 * a.max_abs(0)};
}

// g (1 - y^2). cpu/BinaryOpsKernel.cpp
void tanh_backward(A a, Results out) { out[0] = a[0] * (exactly(1) - square(a[1])); }

// g y (1 - y), in any order
void sigmoid_backward(A a, Results out) {
  const Value g = a[0];
  const Value y = a[1];
  const Value rest = exactly(1) - y;
  out[0] = either(g * rest * y, g * y * rest, g * (y * rest));
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
  table["leaky_relu"] = leaky<1>;
  table["leaky_relu_backward"] = leaky<2>;
  for (const char* name : {"gelu", "silu", "mish"}) table[name] = same_bound;
  for (const char* name : {"tanh", "sin", "cos", "erf"}) table[name] = at_most_one;
  table["sigmoid"] = sigmoid;
  table["hardsigmoid"] = sigmoid;
  table["exp"] = exponential;
  table["sqrt"] = root;
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
