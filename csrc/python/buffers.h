// Searches a model for buffers.
#pragma once

#include <pybind11/pybind11.h>

namespace torchnan {

// Adds may_have_buffers(model) to the module. It returns False only if model.named_buffers() yields nothing.
void bind_buffers(pybind11::module_& m);

}  // namespace torchnan
