// Python code, called by the core.
#pragma once

#include <memory>
#include <stdexcept>

#include <pybind11/pybind11.h>

#include "python/function_mode_guard.h"

namespace torchnan {

// Python is ending, or has ended: to wait for the GIL would be to wait for ever.
bool is_python_ending();

// With the GIL: throws what Python has raised. The core counts an error as a failure of its own; Ctrl-C and SystemExit,
// which are no errors, are meant for the program.
[[noreturn]] void throw_from_python(pybind11::error_already_set& raised);

// With the GIL, and what Python has raised set: throws it at the program. torch carries a python_error through the
// dispatcher and through the autograd engine as it is.
[[noreturn]] void raise_in_caller();

template <typename Code>
auto with_gil(Code&& code) {
  if (is_python_ending()) throw std::runtime_error("Python is ending");
  const pybind11::gil_scoped_acquire gil;
  const pybind11::error_scope keep_error;
  try {
    const FunctionModeGuard aside;
    return code();
  } catch (pybind11::error_already_set& raised) {
    throw_from_python(raised);
  }
}

// An object that any thread may let go of last.
std::shared_ptr<pybind11::object> reachable_from_threads(pybind11::object object);

}  // namespace torchnan
