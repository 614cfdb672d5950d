// Measures the gradients of a list of parameters in one call.
#pragma once

#include <pybind11/pybind11.h>

namespace torchnan {

// Adds measure_gradients(parameters) to the module, for a list of parameters with their names. It returns three lists
// with an item for each parameter that has a gradient: its name, the norm of the gradient and its largest magnitude. It
// returns None if a parameter or a gradient is of a class that may hold its values elsewhere, such as DTensor.
void bind_gradients(pybind11::module_& m);

}  // namespace torchnan
