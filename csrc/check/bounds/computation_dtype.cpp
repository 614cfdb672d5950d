#include "check/bounds/computation_dtype.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <c10/core/DefaultDtype.h>

#include "check/bounds/dtype_range.h"

namespace torchnan {
namespace {

using c10::ScalarType;

void promote(ScalarType& dtype, ScalarType own) {
  dtype = dtype == ScalarType::Undefined ? own : c10::promoteTypes(dtype, own);
}

double rounded(double number, ScalarType dtype) {
  if (number > largest_number(dtype)) return std::numeric_limits<double>::infinity();
  switch (dtype) {
    case ScalarType::Float:
      return static_cast<float>(number);
    case ScalarType::BFloat16:
      return static_cast<float>(c10::BFloat16(static_cast<float>(number)));
    case ScalarType::Half:
      return static_cast<float>(c10::Half(static_cast<float>(number)));
    default:
      return number;
  }
}

}  // namespace

ScalarType computation_dtype(c10::ArrayRef<Operand> operands, size_t element) {
  auto with_dimensions = ScalarType::Undefined;
  auto without = ScalarType::Undefined;
  for (const Operand& operand : operands) {
    const at::Tensor* tensor = tensor_of(&operand, element);
    if (tensor == nullptr) continue;
    const ScalarType own = tensor->scalar_type();
    if (own == with_dimensions || !c10::isFloatingType(own)) continue;
    if (tensor->dim() > 0) {
      promote(with_dimensions, own);
    } else if (!tensor->unsafeGetTensorImpl()->is_wrapped_number()) {
      promote(without, own);
    }
  }
  if (with_dimensions != ScalarType::Undefined) return with_dimensions;
  return without != ScalarType::Undefined ? without : c10::get_default_dtype_as_scalartype();
}

KernelNumber kernel_number(double number, ScalarType dtype) {
  const double exact = std::abs(number);
  if (!std::isfinite(exact)) return {std::numeric_limits<double>::infinity(), 0};
  const double in_dtype = rounded(exact, dtype);
  const double least = std::min(exact, in_dtype);
  return {std::max(exact, in_dtype), least < range_of(dtype).tiny ? 0 : least};
}

}  // namespace torchnan
