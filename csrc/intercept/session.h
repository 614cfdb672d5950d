// Turning detection on and off: what Detector and the Python face do.
#pragma once

#include <memory>

#include <torchnan/export.h>
#include <torchnan/options.h>

#include "watch/watch.h"

namespace torchnan {

// Makes a watch without turning anything on. Throws std::invalid_argument for options that cannot be used,
// std::system_error for a log file that cannot be opened, std::runtime_error if no dispatch key is free.
TORCHNAN_API std::shared_ptr<Watch> make_watch(Options options);

// The calling thread takes part from here on, until it leaves.
TORCHNAN_API void enter_watch(std::shared_ptr<Watch> watch);
TORCHNAN_API void leave_watch(const std::shared_ptr<Watch>& watch);

// Ends the watch; the calling thread has left it. If `judge`, what is still alive is judged, which may throw as any
// harm does. With the last watch all that is remembered of tensors goes.
TORCHNAN_API void end_watch(const std::shared_ptr<Watch>& watch, bool judge);

}  // namespace torchnan
