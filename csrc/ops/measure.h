// torchnan::measure for C++.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchnan {

// Measures by operations of PyTorch that do not synchronize: for devices whose memory the host cannot read. `xs` must
// not be empty, and its tensors must be strided.
at::Tensor measure_by_operations(at::TensorList xs);

}  // namespace torchnan
