// Bounds: how most results are proved finite without being scanned.
//
// Every tensor whose memory comes from PyTorch's allocator has an upper bound of |x|. An operator with a bound rule
// computes the bounds of its results from those of its arguments, before it runs. A result whose bound lies within the
// range of its dtype is finite and is not scanned. If a rule gives no bound, or one out of range, the result is
// scanned, and the largest |x| found is its new, exact bound.
//
// A rule is a theorem about its operator, for all arguments: a bound that is too small hides a NaN, while one that is
// too large only costs a scan. Therefore a rule is the kernel's own formula over abstract values (value.h), in each
// order in which kernels evaluate it:
//
//   register_bound_rule("mylib::gated_mul", [](const RuleArguments& a, std::span<Bound> out) {
//     out[0] = a[0] * (a[1] + a.scalar(2, 1));
//   });
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <torchnan/export.h>
#include <torchnan/value.h>

namespace torchnan {

struct Operand;
class BoundSource;

// The known facts about the values of a tensor.
struct Bound {
  double max_abs = std::numeric_limits<double>::infinity();  // no |x| is larger; infinity: unknown
  bool nonnegative = false;                                  // no x is negative
  bool masked = false;  // x may also be an intentional -inf, as in a mask; all other x are within max_abs
  // For a result: an upper bound, together with max_abs, of every intermediate |x| that the kernel rounds to a dtype of
  // the call. A sum of products is finite only if the products are.
  double max_intermediate = 0;

  bool known() const { return max_abs < std::numeric_limits<double>::infinity(); }

  // Returns a bound that holds for the values of both.
  Bound joined(const Bound& other) const {
    return {std::max(max_abs, other.max_abs), nonnegative && other.nonnegative, masked || other.masked,
            std::max(max_intermediate, other.max_intermediate)};
  }
};

inline Value::operator Bound() const { return {max_abs, nonnegative, masked, intermediate}; }

// Whose kernels compute an operator. A rule that relies on the order or on the types in which a kernel computes names
// those that it was derived from; under any other, it gives no bound.
enum class Kernels : uint8_t {
  kUnknown,  // of ROCm and of other devices: nobody has looked at them
  kHost,     // PyTorch's for the CPU, with the libraries that they call
  kNvidia,   // PyTorch's for CUDA, with cuBLAS and cuDNN
};

// The arguments of a call, by their index in the schema. A rule of an operator on lists (_foreach_*) is called once for
// each element, and sees that element of each list.
class TORCHNAN_API RuleArguments {
 public:
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  RuleArguments(c10::ArrayRef<Operand> operands, const BoundSource& source, size_t element = 0);
  RuleArguments(const RuleArguments&) = delete;  // range_ may point into it
  RuleArguments& operator=(const RuleArguments&) = delete;

  // The dtype that the operation computes in: numbers, and tensors of other dtypes, are rounded to it.
  c10::ScalarType dtype() const { return dtype_; }

  size_t size() const { return operands_.size(); }
  const BoundSource& source() const { return source_; }  // internal, as is the representation of an operand
  const Operand* operand(size_t i) const;                // null beyond the last argument
  const at::Tensor* tensor(size_t i) const;              // null if it is none
  bool has_value(size_t i) const;                        // whether the argument exists and is not None

  // Returns the values of a tensor or a number before the call. They are unknown for a number that is NaN or beyond
  // dtype(), and 0 for an argument without a value. A number covers both forms that a kernel may see: as it was passed,
  // and rounded to dtype(), where it may be 0.
  Value operator[](size_t i) const;
  // Returns the same, or the default for an argument without a value.
  Value scalar(size_t i, double default_value) const;
  // Returns a number that the operator computes from its arguments in double, and then uses as one of them.
  Value as_scalar(double number) const;
  // Returns the same, with the smallest |x|; scans a small tensor to find it.
  Value divisor(size_t i) const;
  // Returns the same in the type that the operator accumulates in: double for float64, float for the other dtypes.
  Value widened(size_t i) const { return taken_into(sums(), (*this)[i]); }
  // Returns a number in that type, where a small one is not rounded to 0.
  Value widened_scalar(size_t i) const;

  // Return the bound of a tensor or a number. max_abs() is kUnknown for a tensor that may hold -inf and for a number
  // that is NaN or beyond dtype(), and 0 for an argument without a value.
  Bound bound(size_t i) const;
  double max_abs(size_t i) const;
  bool nonnegative(size_t i) const;

  // Returns a bound for all tensors of a list: the largest max_abs; nonnegative if all are, masked if any is. Not for
  // the lists of _foreach_ operators.
  Bound bound_of_all(size_t i) const;

  // Return the smallest x and the smallest |x| of a number or a small tensor; 0 if negative or unknown.
  double min_value(size_t i) const;
  double min_abs(size_t i) const;

  // Returns the number as it was passed, for comparisons; for arithmetic, use scalar().
  double number(size_t i, double default_value) const;
  int64_t integer(size_t i, int64_t default_value) const;
  bool flag(size_t i) const;
  c10::SmallVector<int64_t, 5> integers(size_t i) const;  // empty without a value

  // Returns x / y over the elements of two tensors: by the least |y|, or from their common history if they are the
  // moments of an optimizer.
  Value quotient(size_t i, size_t j) const;
  Value reciprocal(size_t i) const;  // the same for 1 / x

  // Only for arguments that are tensors:
  c10::IntArrayRef sizes(size_t i) const;
  int64_t numel(size_t i) const;
  int64_t size(size_t i, int64_t dim) const;  // 1 for a tensor without dimensions

  double combinations(size_t i) const;  // product of the numels of a list of index tensors

  // Whether the operator runs one of these kernels, by the device of its first tensor.
  bool uses_kernels_of(Kernels kernels) const;
  bool is_contiguous(size_t i) const;                     // true for an argument without a value
  bool same(size_t i, size_t j) const;                    // whether both are the same values in the same memory
  bool produced_by(size_t i, std::string_view op) const;  // whether this operator was the last to write it
  // Whether this operator has computed it from the current values of these arguments: of a tensor and a mean, whether
  // the mean is that of the tensor.
  bool describes(size_t i, std::string_view op, std::initializer_list<size_t> arguments) const;

  // The arithmetic of the narrowest dtype among the arguments, and that of the type that sums are accumulated in.
  const DtypeRange& range() const { return *range_; }
  const DtypeRange& sums() const;

 private:
  c10::ArrayRef<Operand> operands_;
  const BoundSource& source_;
  size_t element_;
  c10::ScalarType dtype_;
  const DtypeRange* range_;  // of dtype_, or mixed_
  DtypeRange mixed_;
};

// Sets the bounds of the results in the order in which the operator returns them, followed by those of mutated
// arguments that it does not return. A result that is not set stays unknown. A rule may be called on any thread; an
// exception is counted as an internal error, and the results are scanned.
using BoundRule = std::function<void(const RuleArguments& arguments, std::span<Bound> results)>;

// Registers the rule of an operator such as "mylib::gated_mul", for all its overloads and its in-place form. Throws
// std::invalid_argument for a name without namespace, and for an operator that already has a rule.
TORCHNAN_API void register_bound_rule(const std::string& op, BoundRule rule);

}  // namespace torchnan
