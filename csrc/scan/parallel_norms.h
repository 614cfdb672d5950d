// The extents of many tensors at once, by as many threads as PyTorch may use.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "scan/norm_scan.h"

namespace torchnan {

// Of each tensor, which must be strided, on the CPU and of a dtype that has a FloatFormat. An element that several
// places of the tensor show counts once for each. The same to the last bit for any number of threads.
std::vector<NormAndMax> norms_of(c10::ArrayRef<at::Tensor> tensors);

}  // namespace torchnan
