// The dtype that an operation computes in. The call seldom names it: PyTorch promotes the dtypes of the arguments, and
// rounds numbers and zero-dimensional tensors to the result. In float32, 1e39 is infinite.
#pragma once

#include <cstddef>

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include "check/bounds/operand.h"

namespace torchnan {

// Returns the dtype to which the floating-point tensors with dimensions among these operands are promoted. If there are
// none, returns that of the zero-dimensional ones, or else the default. For a list, only the tensor at index `element`
// counts.
c10::ScalarType computation_dtype(c10::ArrayRef<Operand> operands, size_t element);

// The possible |x| of a number in a kernel: some kernels use it as it was passed, others round it to the dtype they
// compute in.
struct KernelNumber {
  double max_abs = 0;  // infinite if it is beyond the dtype, or NaN
  double min_abs = 0;  // 0 if it is subnormal in the dtype, because processors may flush it
};
KernelNumber kernel_number(double number, c10::ScalarType dtype);

}  // namespace torchnan
