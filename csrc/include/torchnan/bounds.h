// Bounds: how most results are proved finite without being scanned.
//
// Every tensor whose memory comes from PyTorch's allocator has an upper bound of |x|. An operator with a bound rule
// turns the bounds of its arguments into bounds of its results, before it runs. A result whose bound lies within the
// range of its dtype is finite and is not scanned. Where a rule gives no bound, or one out of range, the result is
// scanned, and the largest |x| found is its new, exact bound.
//
// A rule is a theorem about its operator, for all arguments and including the rounding of intermediate sums: a bound
// that is too small hides a NaN, while one that is too large only costs a scan. The rounding of single results is added
// by the caller of the rule; for sums use sum_of().
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <torchnan/export.h>

namespace torchnan {

struct Operand;
class BoundSource;

// What is known about the values of a tensor.
struct Bound {
  double max_abs = std::numeric_limits<double>::infinity();  // no |x| is larger; infinity: unknown
  bool nonnegative = false;                                  // no x is negative
  bool masked = false;  // x may also be an intentional -inf, as in a mask; all other x are within max_abs
  // Of a result: no |x| that the kernel computes on the way to it is larger than this or max_abs. A sum of products is
  // finite only if the products are.
  double max_intermediate = 0;

  bool known() const { return max_abs < std::numeric_limits<double>::infinity(); }

  // Returns a bound that holds for values from either.
  Bound joined(const Bound& other) const {
    return {std::max(max_abs, other.max_abs), nonnegative && other.nonnegative, masked || other.masked,
            std::max(max_intermediate, other.max_intermediate)};
  }
};

// The arguments of a call, by their index in the schema. A rule of an operator on lists (_foreach_*) is called once for
// each element, and sees that element of each list.
class TORCHNAN_API RuleArguments {
 public:
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  RuleArguments(c10::ArrayRef<Operand> operands, const BoundSource& source, size_t element = 0);

  // The dtype that the operation computes in: numbers, and tensors of other dtypes, are rounded to it.
  c10::ScalarType dtype() const { return dtype_; }

  size_t size() const { return operands_.size(); }
  const BoundSource& source() const { return source_; }  // internal, as is the representation of an operand
  const Operand* operand(size_t i) const;                // null beyond the last argument
  const at::Tensor* tensor(size_t i) const;              // null if it is none
  bool has_value(size_t i) const;                        // whether the argument exists and is not None

  // Return the bound of a tensor or a number. max_abs() is kUnknown for a tensor that may hold -inf, for a number that
  // is NaN or beyond dtype(), and 0 for an argument without a value.
  Bound bound(size_t i) const;
  double max_abs(size_t i) const;
  bool nonnegative(size_t i) const;

  // Returns max_abs(), or the default for an argument without a value.
  double magnitude(size_t i, double default_value) const;

  // Returns a bound for all tensors of a list: the largest max_abs; nonnegative if all are, masked if any is. Not for
  // the lists of _foreach_ operators.
  Bound bound_of_all(size_t i) const;

  // Return the smallest x and the smallest |x| of a number or a small tensor; 0 if negative or unknown.
  double min_value(size_t i) const;
  double min_abs(size_t i) const;

  // Returns the number as it was passed, to compare it; to compute with it, use magnitude().
  double number(size_t i, double default_value) const;
  int64_t integer(size_t i, int64_t default_value) const;
  bool flag(size_t i) const;
  c10::SmallVector<int64_t, 5> integers(size_t i) const;  // empty without a value

  // Returns a bound of |x / y| over the elements of two tensors: by the least |y|, or because both have one history, as
  // the moments of an optimizer have. kUnknown if neither gives one.
  double quotient(size_t i, size_t j) const;
  double reciprocal(size_t i) const;  // the same of |1 / x|

  // Only for arguments that are tensors:
  c10::IntArrayRef sizes(size_t i) const;
  int64_t numel(size_t i) const;
  int64_t size(size_t i, int64_t dim) const;  // 1 for a tensor without dimensions

  double combinations(size_t i) const;  // product of the numels of a list of index tensors

  bool same(size_t i, size_t j) const;                    // whether both are the same values in the same memory
  bool produced_by(size_t i, std::string_view op) const;  // whether this operator was the last to write it

  // Returns a bound of the sum of `terms` numbers of magnitude up to `each`, including the rounding of the operator.
  double sum_of(double terms, double each) const;
  double epsilon() const;  // unit roundoff of the type that the operator accumulates in: 2^-24, or 2^-53 for float64
  double limit() const;    // of the narrowest range among the dtypes of the arguments: 65504 for float16
  double unit_roundoff() const;   // the largest among the dtypes of the arguments: 2^-8 for bfloat16
  double subnormal_step() const;  // the largest of their smallest subnormal numbers: 2^-149 for float32

 private:
  template <typename Visit>
  void for_each_range(Visit&& visit) const;  // of the dtypes of the arguments

  c10::ArrayRef<Operand> operands_;
  const BoundSource& source_;
  size_t element_;
  c10::ScalarType dtype_;
};

// Sets the bounds of the results, in the order in which the operator returns them, followed by the mutated arguments
// that it does not return. Results that are left alone stay unknown. Called on any thread; an exception is counted as
// an internal error, and the results are scanned.
using BoundRule = std::function<void(const RuleArguments& arguments, std::span<Bound> results)>;

// Registers the rule of an operator such as "mylib::gated_mul", for all its overloads and its in-place form. Throws
// std::invalid_argument for a name without namespace, and for an operator that already has a rule.
TORCHNAN_API void register_bound_rule(const std::string& op, BoundRule rule);

}  // namespace torchnan
