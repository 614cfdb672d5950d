// How often another thread of the host language has run, such as by taking Python's GIL.
#pragma once

#include <cstdint>

#include <torchnan/export.h>

namespace torchnan {

// Has thread_switches() read a counter of the host's, which lives as long as the process and only grows.
TORCHNAN_API void set_thread_switches(const unsigned long* counter);

// Returns a number that differs from all earlier ones if another thread of the host has run since. It is always 0
// without a host: what threads of C++ do is not observed.
uint64_t thread_switches() noexcept;

}  // namespace torchnan
