// The locks that the calling thread holds. Only for checks, because every lock is examined.
#pragma once

#include <torchnan/export.h>

namespace torchnan {

// Whether the thread holds any ForkSafeMutex, and so must not wait for the GIL. False during a fork.
TORCHNAN_API bool holds_lock();

}  // namespace torchnan
