// The state of the interpreter.
#pragma once

#include <Python.h>

#include <memory>

#include <pybind11/pybind11.h>

namespace torchnan {

// Whether Python ends, or has ended: the GIL cannot be had any more.
inline bool is_shutting_down() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsInitialized() == 0 || Py_IsFinalizing() != 0;
#else
  return Py_IsInitialized() == 0 || _Py_IsFinalizing() != 0;
#endif
}

// An object that the core holds: whichever thread lets go of it last has the GIL or has not.
inline std::shared_ptr<pybind11::object> shared(pybind11::object object) {
  return {new pybind11::object(std::move(object)), [](pybind11::object* last) {
            if (is_shutting_down()) return;  // it ends with the process
            const pybind11::gil_scoped_acquire gil;
            delete last;
          }};
}

}  // namespace torchnan
