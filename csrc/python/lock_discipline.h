// Counts where the core would wait for the GIL while it holds a lock (process/fork_safe_mutex.h).
#pragma once

#include <cstdint>

#include <pybind11/pybind11.h>

namespace torchnan {

// Begins to count, among the references to Python objects that PyTorch makes and drops. Needs the GIL; for the rest of
// the process.
void check_lock_discipline();

// Returns how often a thread without the GIL has needed it for that while it held a lock.
int64_t gil_waits_under_lock();

// Does what must not be done, so that it is seen to be counted: makes the second reference to a tensor, which Python
// has the first of, without the GIL and under a lock.
void wait_for_gil_under_lock(const pybind11::object& tensor);

}  // namespace torchnan
