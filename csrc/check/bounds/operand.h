// One argument of a call, boxed or unboxed. Does not own it.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>
#include <c10/core/SymInt.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/OptionalArrayRef.h>

namespace torchnan {

struct Operand {
  enum class Kind : uint8_t { kNothing, kTensor, kNumber, kInteger, kIntegers, kValues, kOther };

  Kind kind = Kind::kNothing;
  union {
    const at::Tensor* tensor;
    double number;
    int64_t integer;
    const void* first;  // kIntegers: int64_t; kValues: c10::IValue, elements of a list
  };
  size_t count = 0;

  Operand() : first(nullptr) {}
};

inline Operand operand(const at::Tensor& tensor) {
  Operand made;
  if (!tensor.defined()) return made;
  made.kind = Operand::Kind::kTensor;
  made.tensor = &tensor;
  return made;
}

inline Operand operand(double number) {
  Operand made;
  made.kind = Operand::Kind::kNumber;
  made.number = number;
  return made;
}

inline Operand operand(int64_t integer) {
  Operand made;
  made.kind = Operand::Kind::kInteger;
  made.integer = integer;
  return made;
}

inline Operand operand(bool flag) { return operand(static_cast<int64_t>(flag)); }

inline Operand unsupported_operand() {
  Operand made;
  made.kind = Operand::Kind::kOther;
  return made;
}

// An integer from 2^63 on does not fit into an int64_t. A symbol has no value yet.
inline Operand operand(const c10::Scalar& scalar) {
  if (scalar.isSymbolic()) return unsupported_operand();
  if (scalar.isUnsigned()) return operand(scalar.to<double>());
  if (scalar.isIntegral(true)) return operand(scalar.to<int64_t>());
  return scalar.isFloatingPoint() ? operand(scalar.to<double>()) : unsupported_operand();
}

inline Operand operand(const c10::SymInt& integer) {
  const auto plain = integer.maybe_as_int();
  return plain ? operand(*plain) : unsupported_operand();
}

inline Operand operand(c10::IntArrayRef integers) {
  Operand made;
  made.kind = Operand::Kind::kIntegers;
  made.first = integers.data();
  made.count = integers.size();
  return made;
}

inline Operand operand(c10::SymIntArrayRef integers) {
  const auto plain = c10::asIntArrayRefSlowOpt(integers);
  return plain ? operand(*plain) : unsupported_operand();
}

inline Operand operand(at::OptionalIntArrayRef integers) { return integers ? operand(*integers) : Operand(); }

// Dtypes, layouts, generators, names: rules do not use them.
template <typename T>
Operand operand(const T&) {
  return unsupported_operand();
}

template <typename T>
Operand operand(const std::optional<T>& value) {
  return value ? operand(*value) : Operand();
}

Operand operand(const c10::IValue& value);

// Returns the tensor of an operand, or of a list the one at index `element`; null if it is not a tensor.
const at::Tensor* tensor_in_list(const Operand& list, size_t element);
inline const at::Tensor* tensor_of(const Operand* operand, size_t element) {
  if (operand == nullptr) return nullptr;
  if (operand->kind == Operand::Kind::kTensor) return operand->tensor;
  return operand->kind == Operand::Kind::kValues ? tensor_in_list(*operand, element) : nullptr;
}

}  // namespace torchnan
