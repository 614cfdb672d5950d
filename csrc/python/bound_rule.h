// Bound rules written in Python.
#pragma once

#include <pybind11/pybind11.h>

namespace torchnan {

// Adds register_bound(op, rule, Bound) to the module.
void bind_bound_rules(pybind11::module_& m);

}  // namespace torchnan
