// Counts where the core would wait for the GIL while it holds the lock of the devices (device/devices.h).
#pragma once

#include <cstdint>

namespace torchnan {

// Begins to count, among the references to Python objects that PyTorch makes and drops. Needs the GIL; for the rest of
// the process.
void check_lock_discipline();

// Returns how often a thread without the GIL has needed it for that while it held the lock.
int64_t gil_waits_under_lock();

}  // namespace torchnan
