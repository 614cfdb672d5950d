// torchnan::measure for C++.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torchnan/export.h>

namespace torchnan {

// Measures by operations of PyTorch that do not synchronize: for devices whose memory the host cannot read. `xs` must
// not be empty, and its tensors must be strided.
at::Tensor measure_by_operations(at::TensorList xs);

// Returns the 2-norm and the largest magnitude of each tensor, like torchnan::measure, but as numbers, and for tensors
// on several devices; synchronizes once for each device. Detection and autograd do not see it.
TORCHNAN_API std::vector<std::pair<double, double>> norms_and_magnitudes(at::TensorList xs);

}  // namespace torchnan
