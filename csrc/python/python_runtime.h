// Python as the runtime. Forwards the questions of the core to torchnan.detection.introspection, which finds the
// user's frames and the names of modules.
#pragma once

#include <pybind11/pybind11.h>

#include "detection/user_notifier.h"
#include "base/runtime.h"

namespace torchnan {

// Returns the frames of an interned stack, innermost first: (code, line, module or None) of each.
pybind11::list stack_frames(SiteId site);

// Makes Python the runtime, with the modules torchnan.detection.introspection and torchnan.detection.errors.
void set_python_runtime(pybind11::object introspection_module, pybind11::object errors_module);

}  // namespace torchnan
