// The callbacks of the hooks on functions of PyTorch: see the table in torchnan/detection/hooks.py.
#pragma once

#include <pybind11/pybind11.h>

namespace torchnan {

// Binds the functions that examine the arguments of a hooked function before it runs. They take any object: if PyTorch
// would reject it, it is left for PyTorch to reject.
void bind_hook_callbacks(pybind11::module_& m);

}  // namespace torchnan
