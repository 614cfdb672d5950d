// Abstract values: what a rule knows about the numbers that a kernel computes with.
//
// A rule is the kernel's own formula over such values: (x - mean) * rstd * weight + bias. Each operation rounds as the
// kernel does, remembers the largest intermediate, and gives an unknown value where the kernel may overflow, divide by
// zero, or take a root of a negative number. Unknown is contagious, so no intermediate can be forgotten.
#pragma once

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

namespace torchnan {

struct Bound;

// The arithmetic of a dtype: its range, and how far a computed number may be from the exact one.
struct DtypeRange {
  double limit = 0;    // a result within this bound is finite; 0 for dtypes without bounds
  double unit = 0;     // unit roundoff
  double tiny = 0;     // the smallest normal number: processors can be told to flush smaller ones to zero
  double epsilon = 0;  // unit roundoff of the type that sums are accumulated in
  double step = 0;     // the smallest subnormal: no rounding below `tiny` is off by more
  bool is_stored =
      true;  // whether tensors of the call have this dtype; false for a wider one that only the kernel computes in
};

// The range of all numbers that one variable of a kernel may hold. A default Value is unknown: it may be NaN or
// infinite.
struct Value {
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  double max_abs = kUnknown;       // no |x| is larger
  double min_abs = 0;              // no |x| is smaller
  double error = 0;                // no x is further from its exact value, by the exact formula of the same arguments
  double intermediate = 0;         // the largest |x| that was computed on the way and rounded to the dtype of a tensor
  bool nonnegative = false;        // no x is negative
  bool masked = false;             // x may also be an intentional -inf; all other x are within max_abs
  const DtypeRange* in = nullptr;  // the arithmetic that it is computed in; null for a constant, which adapts

  bool known() const { return max_abs < kUnknown; }
  bool is_positive() const { return nonnegative && min_abs > 0; }
  bool is_one() const { return max_abs == 1 && min_abs == 1 && nonnegative; }

  operator Bound() const;  // in bounds.h
};

// Returns a number that is exact in every arithmetic, such as a count or a power of two.
inline Value exactly(double number) { return {std::abs(number), std::abs(number), 0, 0, number >= 0}; }

namespace detail {

// Returns the wider of two types, in which a kernel computes.
inline const DtypeRange* wider(const DtypeRange* x, const DtypeRange* y) {
  if (x == nullptr || y == nullptr) return x == nullptr ? y : x;
  return x->unit <= y->unit ? x : y;
}

// Returns the result of an operation on x and y, rounded to the wider of their types.
inline Value rounded(const Value& x, const Value& y, double max_abs, double min_abs, double error, bool nonnegative,
                     bool masked = false) {
  const DtypeRange* in = wider(x.in, y.in);
  Value result{max_abs, min_abs, error, std::max(x.intermediate, y.intermediate), nonnegative, masked, in};
  if (in == nullptr) return result;
  result.max_abs += max_abs * in->unit + in->step;
  result.error += max_abs * in->unit + in->tiny;
  result.min_abs *= 1 - in->unit;
  if (result.min_abs < in->tiny) result.min_abs = 0;
  if (!(result.max_abs <= in->limit)) {  // true for NaN as well
    result.max_abs = Value::kUnknown;
    result.min_abs = 0;
  }
  if (in->is_stored) result.intermediate = std::max(result.intermediate, result.max_abs);
  return result;
}

inline Value unknown_in(const DtypeRange* in) {
  Value unknown;
  unknown.in = in;
  return unknown;
}

}  // namespace detail

// -inf + y is -inf for a finite y.
inline Value operator+(const Value& x, const Value& y) {
  if (x.masked && y.masked) return detail::unknown_in(x.in);
  const bool nonnegative = x.nonnegative && y.nonnegative;
  return detail::rounded(x, y, x.max_abs + y.max_abs, nonnegative ? x.min_abs + y.min_abs : 0, x.error + y.error,
                         nonnegative, x.masked || y.masked);
}

// The difference of two numbers of the same sign is at most as large as either.
inline Value operator-(const Value& x, const Value& y) {
  if (x.masked || y.masked) return detail::unknown_in(x.in);
  const bool have_same_sign = x.nonnegative && y.nonnegative;
  const double max_abs = have_same_sign ? std::max(x.max_abs, y.max_abs) : x.max_abs + y.max_abs;
  return detail::rounded(x, y, max_abs, 0, x.error + y.error, false);
}

inline Value operator-(Value x) {
  if (x.masked) return detail::unknown_in(x.in);
  x.nonnegative = false;
  return x;
}

// -inf stays -inf only if the other factor is positive, and not rounded to zero.
inline Value operator*(const Value& x, const Value& y) {
  const bool masked = x.masked || y.masked;
  if (masked && !(x.masked ? y.is_positive() && !y.masked : x.is_positive())) return detail::unknown_in(x.in);
  if (x.is_one()) return y;
  if (y.is_one()) return x;
  return detail::rounded(x, y, x.max_abs * y.max_abs, x.min_abs * y.min_abs,
                         x.error * y.max_abs + y.error * (x.max_abs + x.error), x.nonnegative && y.nonnegative, masked);
}

// Only the smallest |y| matters. The distance from the exact quotient is unknown if the exact y may be 0.
inline Value operator/(const Value& x, const Value& y) {
  if (x.masked || y.masked || !(y.min_abs > 0)) return detail::unknown_in(x.in);
  if (y.is_one()) return x;
  const double max_abs = x.max_abs / y.min_abs;
  const double least_exact = std::max(y.min_abs - y.error, 0.0);
  const double error = y.error == 0 && x.error == 0 ? 0 : (x.error + y.error * max_abs) / least_exact;
  return detail::rounded(x, y, max_abs, x.min_abs / y.max_abs, error, x.nonnegative && y.nonnegative);
}

inline Value square(const Value& x) {
  Value result = x * x;
  result.nonnegative = true;
  return result;
}

inline Value sqrt(const Value& x) {
  if (!x.nonnegative || x.masked) return detail::unknown_in(x.in);
  const double error = x.min_abs > 0 ? x.error / std::sqrt(x.min_abs) : std::sqrt(x.error);
  return detail::rounded(x, x, std::sqrt(x.max_abs), std::sqrt(x.min_abs), error, true);
}

// exp(-inf) is 0.
inline Value exp(const Value& x) {
  const double max_abs = std::exp(x.max_abs);
  return detail::rounded(x, x, max_abs, x.masked ? 0 : std::exp(-x.max_abs), max_abs * std::expm1(x.error), true);
}

// The factor by which the rounded sum of n numbers may exceed the exact one. Each addition contributes a factor of 1 +
// u. Adding b moves a rounded sum by at most 2b, so one running sum at most doubles, and sums of sums at most double
// again. A further fifth covers trees of sums, and sums that are kept in 16 bits.
inline double growth_of_sum(double n, const DtypeRange& in) {
  constexpr double kMaxGrowth = 5;
  if (in.unit > in.epsilon) return kMaxGrowth;
  const double relative = n * in.epsilon;
  return relative < 1 ? 1 + relative + relative * relative : kMaxGrowth;
}

// Returns the sum of n numbers, in any order. Its error is that of a running sum whose n roundings all go the same way,
// as they may for numbers that are nearly equal.
inline Value sum(const Value& x, double n) {
  if (x.masked || x.in == nullptr) return detail::unknown_in(x.in);
  const double exact = n * x.max_abs;
  return detail::rounded(x, x, exact * growth_of_sum(n, *x.in), 0, n * x.error + exact * x.in->unit * n, x.nonnegative);
}

// The sum comes first, and its rounding remains: the mean of n equal numbers may exceed them.
inline Value mean(const Value& x, double n) { return sum(x, n) / exactly(std::max(n, 1.0)); }

// Returns a value that covers both: one of several alternatives, or a result that kernels compute in several orders.
inline Value either(const Value& x, const Value& y) {
  return {std::max(x.max_abs, y.max_abs), std::min(x.min_abs, y.min_abs),
          std::max(x.error, y.error),     std::max(x.intermediate, y.intermediate),
          x.nonnegative && y.nonnegative, x.masked || y.masked,
          detail::wider(x.in, y.in)};
}
template <typename... More>
Value either(const Value& x, const Value& y, const Value& z, const More&... more) {
  return either(either(x, y), z, more...);
}

// Returns x with a better bound of its exact value, from a theorem. If it may overflow, it stays unknown.
inline Value at_most(double exact_bound, Value x) {
  if (x.known()) x.max_abs = std::min(x.max_abs, exact_bound + x.error);
  return x;
}

// Returns a value converted to another type, as kernels convert 16-bit types to float and back.
inline Value taken_into(const DtypeRange& range, Value x) {
  if (x.in == &range) return x;
  const bool is_widened = x.in == nullptr || range.unit <= x.in->unit;
  x.in = &range;
  return is_widened ? x : detail::rounded(x, x, x.max_abs, x.min_abs, x.error, x.nonnegative, x.masked);
}

// The narrowest type in which kernels multiply numbers of float32: bfloat16. Settings allow it for matrix products,
// convolutions, recurrent layers and attention (set_float32_matmul_precision, fp32_precision of each backend and
// operator, ONEDNN_DEFAULT_FPMATH_MODE), and TF32 has a wider range. The type is assumed under every setting: the price
// is a scan where a factor exceeds a quarter of the range. No backend multiplies numbers of float32 in float16.
inline constexpr DtypeRange kFactorRange{0x1p126, 0x1p-8, 0x1p-126, 0x1p-24, 0x1p-133, /*is_stored=*/false};

// Returns a number as a kernel multiplies it: perhaps rounded to a narrower type, where a large one is infinite.
inline Value as_factor(const Value& x) {
  const bool is_narrowed = x.in != nullptr && x.in->unit >= 0x1p-24;  // not float64
  return is_narrowed ? taken_into(*x.in, taken_into(kFactorRange, x)) : x;
}

// Returns the sum of n products of factors.
inline Value dot(const Value& x, const Value& y, double n) { return sum(as_factor(x) * as_factor(y), n); }

}  // namespace torchnan
