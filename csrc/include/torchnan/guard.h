// Guards: points in user code where values must be finite.
#pragma once

#include <source_location>
#include <string>

#include <ATen/core/Tensor.h>

#include <torchnan/export.h>

namespace torchnan {

// Checks x at once, and its gradient when the backward pass arrives here; returns a view of x. A non-finite value or
// gradient is harm, reported under this name; for the value, with the line of the call. Without a Detector it throws
// NonFiniteError.
TORCHNAN_API at::Tensor guard(const at::Tensor& x, const std::string& name,
                              const std::source_location& where = std::source_location::current());

}  // namespace torchnan
