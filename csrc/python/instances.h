// What of a kind there is in the program.
#pragma once

#include <pybind11/pybind11.h>

namespace torchnan {

// The objects of this type that Python's garbage collector knows of.
pybind11::list instances_of(const pybind11::type& type);

}  // namespace torchnan
