// The lagging device for programs in Python, which load this by ctypes.
#include <torchnan/export.h>

#include "device/lagging_device.h"

extern "C" {

TORCHNAN_API void lagging_plug_into_torchnan() { torchnan::lagging::plug_into_torchnan(); }
TORCHNAN_API void lagging_run_all() { torchnan::lagging::run_all(); }
TORCHNAN_API int64_t lagging_waits() { return torchnan::lagging::counts().waits; }
TORCHNAN_API int64_t lagging_copies_back() { return torchnan::lagging::counts().copies_back; }
TORCHNAN_API void lagging_forget_counts() { torchnan::lagging::forget_counts(); }

}  // extern "C"
