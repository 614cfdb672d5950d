// The dtype that an operation computes in. It is seldom said in the call: PyTorch promotes the dtypes of the arguments,
// and rounds numbers and tensors without dimensions to what comes out. In float32, 1e39 is infinite.
#pragma once

#include <cstddef>

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include "bounds/operand.h"

namespace torchnan {

// Returns the dtype that the floating-point tensors with dimensions among these operands are promoted to; without any,
// that of those without dimensions, or else the default. Of lists, the tensors at index `element` count.
c10::ScalarType computation_dtype(c10::ArrayRef<Operand> operands, size_t element);

// What |x| of a number may be in a kernel: some use it as it was passed, others round it to the dtype they compute in.
struct KernelNumber {
  double max_abs = 0;  // infinite if it is beyond the dtype, or NaN
  double min_abs = 0;  // 0 if it is below the normal numbers of the dtype, which processors can be told to flush
};
KernelNumber kernel_number(double number, c10::ScalarType dtype);

}  // namespace torchnan
