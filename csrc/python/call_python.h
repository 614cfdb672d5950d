// Calls Python code from the core.
#pragma once

#include <cassert>
#include <memory>
#include <stdexcept>

#include <pybind11/pybind11.h>

#include "base/held_locks.h"
#include "python/function_mode_guard.h"

namespace torchnan {

// Whether Python is ending or has ended: waiting for the GIL would never return.
bool is_python_ending();

// Requires the GIL. Throws a C++ exception for an error raised in Python. The core counts it as an internal error,
// except for Ctrl-C, SystemExit and what a signal handler of the program raised: these are passed on to user code.
[[noreturn]] void throw_from_python(pybind11::error_already_set& raised);

// Requires the GIL and a set Python error, which is raised in user code: torch passes a python_error unchanged through
// the dispatcher and the autograd engine.
[[noreturn]] void raise_in_caller();

// Holds the GIL. Never acquire it while holding a lock: its holder may be waiting for that lock.
class Gil {
  struct LockCheck {
    LockCheck() { assert((PyGILState_Check() != 0 || !holds_lock()) && "the GIL is waited for with a lock"); }
  };
  [[no_unique_address]] LockCheck before_;
  pybind11::gil_scoped_acquire gil_;
};

// Runs code with the GIL, outside Dynamo and __torch_function__ modes.
template <typename Code>
auto with_gil(Code&& code) {
  if (is_python_ending()) throw std::runtime_error("Python is ending");
  const Gil gil;
  const pybind11::error_scope keep_error;
  try {
    const FunctionModeGuard guard;
    return code();
  } catch (pybind11::error_already_set& raised) {
    throw_from_python(raised);
  }
}

// Returns a reference that any thread may release last.
std::shared_ptr<pybind11::object> reachable_from_threads(pybind11::object object);

}  // namespace torchnan
