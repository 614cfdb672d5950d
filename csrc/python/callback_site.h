// Callbacks of futures. They run later, often on a thread of the process group, but belong to the location where they
// were made.
#pragma once

#include <pybind11/pybind11.h>

namespace torchnan {

void bind_callback_sites(pybind11::module_& m);

}  // namespace torchnan
