// Counts how often another thread of the interpreter has run, for example by taking Python's GIL.
#pragma once

#include <cstdint>

#include <torchnan/export.h>

namespace torchnan {

// Makes thread_switches() read a counter of the interpreter, which must live as long as the process and only grow.
TORCHNAN_API void set_thread_switches(const unsigned long* counter);

// Returns a number that differs from all earlier ones if another thread of the interpreter has run since. Without one
// it is always 0: C++ threads are not observed.
uint64_t thread_switches() noexcept;

}  // namespace torchnan
