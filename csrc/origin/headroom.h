// The rows of headroom(): the magnitudes of call sites, by module.
#pragma once

#include <vector>

#include <torchnan/headroom.h>

#include "detection/session.h"

namespace torchnan {

// Returns the rows since the last call. Scanned values come first, then bounds; each group is sorted from the least
// headroom to the most. Throws std::logic_error if the session was made without the option.
TORCHNAN_API std::vector<Headroom> drain_headroom(const DetectionSession& session);

}  // namespace torchnan
