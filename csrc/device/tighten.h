// Tighter bounds for results on devices that were proved.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchnan {

// Scans a result that was proved, late but under its own event, so that its bound is what devices assume. Returns false
// if that is not possible, or would not be tighter.
bool tighten_on_device(const at::Tensor& tensor);

}  // namespace torchnan
