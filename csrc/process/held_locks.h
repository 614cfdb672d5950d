// Which locks the calling thread holds: for checks, as every lock is looked at.
#pragma once

#include <torchnan/export.h>

namespace torchnan {

// Whether it holds any ForkSafeMutex, and so must not wait for the GIL. False while a fork is under way.
TORCHNAN_API bool holds_lock();

}  // namespace torchnan
