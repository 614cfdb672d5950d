// The statistics of a tensor on a device, as the report gives them.
#pragma once

#include <ATen/core/Tensor.h>

#include "check/scan/tensor_scan.h"

namespace torchnan {

// A larger tensor is counted on the device instead of being copied to the host.
constexpr size_t kMaxCopiedBytes = size_t{4} << 20;

// Returns the same as compute_stats() for these values on the host. Uses operations of PyTorch, which are not
// intercepted, and waits for the current stream. The memory that they allocate on the device is bounded, however large
// the tensor.
TensorStats compute_stats_on_device(const at::Tensor& tensor);

}  // namespace torchnan
