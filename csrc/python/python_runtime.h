// The Python program that is being watched. What it takes judgement to tell (which frame is the user's, what a module
// is called) is told by the Python package; this only carries the question there.
#pragma once

#include <pybind11/pybind11.h>

#include "host/user_notifier.h"
#include "host/host_runtime.h"

namespace torchnan {

// Plugs Python in as the host. `place`, `owner`, `held`, `error` and `warn` are the functions of
// torchnan.detection.introspection and torchnan.detection.errors that answer for it.
void plug_in_python(pybind11::object program_module, pybind11::object errors_module);

}  // namespace torchnan
