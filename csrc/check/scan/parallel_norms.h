// Computes the norms of many tensors at once, on as many threads as PyTorch may use.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "check/scan/norm_scan.h"

namespace torchnan {

// Returns norm and largest magnitude of each tensor. Tensors must be strided, on the CPU, and of a dtype with a
// FloatFormat. An element of memory that appears several times in the tensor counts as often. The result is the same to
// the last bit for any number of threads.
std::vector<NormAndMax> norms_of(c10::ArrayRef<at::Tensor> tensors);

}  // namespace torchnan
