// torchnan::measure for C++.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchnan {

// By PyTorch's own operations, none of which makes the host wait: for devices whose memory cannot be read from here.
// `xs` is not empty, and its tensors are strided.
at::Tensor measure_by_operations(at::TensorList xs);

}  // namespace torchnan
