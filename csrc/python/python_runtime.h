// The host runtime for Python. Forwards the questions of the core to torchnan.detection.introspection, which knows how
// to find the user's frames and the names of modules.
#pragma once

#include <pybind11/pybind11.h>

#include "host/user_notifier.h"
#include "host/host_runtime.h"

namespace torchnan {

// Makes Python the host, with the modules torchnan.detection.introspection and torchnan.detection.errors.
void set_python_host(pybind11::object introspection_module, pybind11::object errors_module);

}  // namespace torchnan
