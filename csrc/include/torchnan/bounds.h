// Bounds: how most results are known to be finite without being looked at.
//
// With every tensor that PyTorch's allocator gave out goes an upper bound of |x|. An operator with a rule turns the
// bounds of its arguments into bounds of its results before it runs; a result whose bound is within its dtype's range
// is finite, and is not read. Where a rule gives no bound, or one out of range, the result is read, and what was found
// is its new, exact bound.
//
// A rule is a theorem about the operator, accumulation included, for whatever its arguments are: a bound that is too
// small hides a NaN. One that is too large only costs a look. Rounding of single results is the caller's business, that
// of sums is sum_of()'s.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <torchnan/export.h>

namespace torchnan {

struct Operand;
class BoundSource;

// What is known of the values of a tensor.
struct Bound {
  double max_abs = std::numeric_limits<double>::infinity();  // no |x| is above it; infinity: nothing is known
  bool nonnegative = false;                                  // no x is below zero
  bool masked = false;  // x may also be -inf, on purpose: a mask. All else is within `most`

  bool known() const { return max_abs < std::numeric_limits<double>::infinity(); }

  // Of what may be from either.
  Bound joined(const Bound& other) const {
    return {std::max(max_abs, other.max_abs), nonnegative && other.nonnegative, masked || other.masked};
  }
};

// A call's arguments, as its rule sees them: by their place in the schema. Of an operator on lists (_foreach_*) it sees
// one element of each list at a time.
class TORCHNAN_API RuleArguments {
 public:
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  RuleArguments(c10::ArrayRef<Operand> operands, const BoundSource& source, size_t element = 0)
      : operands_(operands), source_(source), element_(element) {}

  size_t size() const { return operands_.size(); }
  const Operand* operand(size_t i) const;  // the library's own view of it; null beyond the last
  bool has_value(size_t i) const;          // there is such an argument, and it is not None

  // Of a tensor, or a number. most() of what may be -inf, and of what is not given, is kUnknown and 0.
  Bound bound(size_t i) const;
  double max_abs(size_t i) const;
  bool nonnegative(size_t i) const;

  // The largest of a list of tensors, kept lists (_foreach_*) aside; nonnegative and masked if all and any are.
  Bound bound_of_all(size_t i) const;

  // Of a number or a small tensor: the smallest x, and the smallest |x|; 0 if it is below zero or not known.
  double min_value(size_t i) const;
  double min_abs(size_t i) const;

  double number(size_t i, double default_value) const;
  int64_t integer(size_t i, int64_t default_value) const;
  bool flag(size_t i) const;
  c10::SmallVector<int64_t, 5> integers(size_t i) const;  // empty if not given

  // Of a tensor.
  c10::IntArrayRef sizes(size_t i) const;
  int64_t numel(size_t i) const;
  int64_t size(size_t i, int64_t dim) const;  // 1 for a tensor without dimensions

  double combinations(size_t i) const;  // of a list of tensors, index tensors: the product of their numels

  bool same(size_t i, size_t j) const;                    // the same values in the same memory
  bool produced_by(size_t i, std::string_view op) const;  // written by this operator, and not since

  // The most that `terms` numbers of at most `each` can add up to, rounded as the operator may round.
  double sum_of(double terms, double each) const;
  double epsilon() const;        // unit roundoff of what the operator accumulates in: 2^-24, 2^-53 for float64
  double limit() const;          // of the narrowest range among the arguments' dtypes: 65504 for float16
  double unit_roundoff() const;  // of the widest rounding among the arguments' dtypes: 2^-8 for bfloat16

 private:
  template <typename Visit>
  void for_each_range(Visit&& visit) const;  // of the arguments' dtypes

  c10::ArrayRef<Operand> operands_;
  const BoundSource& source_;
  size_t element_;
};

// Sets the bounds of the results, in the order in which the operator returns them (then of what it writes and does not
// return). Results that it leaves alone are unknown. Called on any thread; what it throws is counted, and the results
// are looked at.
using BoundRule = std::function<void(const RuleArguments& arguments, std::span<Bound> results)>;

// Makes `rule` the rule of an operator: "mylib::gated_mul", every overload of it and its in-place form. Throws
// std::invalid_argument for a name without namespace, and for one that has a rule already.
TORCHNAN_API void register_bound_rule(const std::string& op, BoundRule rule);

}  // namespace torchnan
