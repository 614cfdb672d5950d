// Finds the instances of a type.
#pragma once

#include <pybind11/pybind11.h>

namespace torchnan {

// Returns the objects of this type that Python's garbage collector tracks.
pybind11::list instances_of(const pybind11::type& type);

}  // namespace torchnan
