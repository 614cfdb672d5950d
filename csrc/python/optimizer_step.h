// Reads the state of PyTorch's optimizers in Python, for steps that are proved finite as a whole.
#pragma once

#include <pybind11/pybind11.h>

namespace torchnan {

// Adds start_proved_step(groups, state) and finish_proved_step(is_completed) to the module.
void bind_proved_steps(pybind11::module_& m);

}  // namespace torchnan
