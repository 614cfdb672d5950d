// Counts the cases in which the core would wait for the GIL while it holds a lock (base/fork_safe_mutex.h).
#pragma once

#include <cstdint>

#include <pybind11/pybind11.h>

namespace torchnan {

// Starts to count when PyTorch makes and drops references to Python objects, for the rest of the process. Needs the
// GIL.
void check_lock_discipline();

// Returns how often a thread without the GIL needed it for that while it held a lock.
int64_t gil_waits_under_lock();

// Breaks the rule on purpose, to test the counter: makes a second reference to a tensor that Python references, without
// the GIL and under a lock.
void wait_for_gil_under_lock(const pybind11::object& tensor);

}  // namespace torchnan
