// What the hooks on functions of PyTorch tell the core about: see the table in torchnan/detection/hooks.py.
#pragma once

#include <pybind11/pybind11.h>

namespace torchnan {

// Binds the functions that look at the arguments of a hooked function before it runs. They take any object: what
// PyTorch would refuse is left for it to refuse.
void bind_hook_callbacks(pybind11::module_& m);

}  // namespace torchnan
