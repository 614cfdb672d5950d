// A place in the program where values must be finite.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include <torchnan/export.h>

namespace torchnan {

// Returns a view of x. The value is checked here and now, the gradient when it passes here in the backward
// pass; either being non-finite is harm, reported under this name. Works with and without a Detector: without
// one it throws NonFiniteError.
TORCHNAN_API at::Tensor guard(const at::Tensor& x, const std::string& name);

}  // namespace torchnan
