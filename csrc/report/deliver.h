// A finding on its way out: kept, logged, and acted upon.
#pragma once

#include <vector>

#include <torchnan/finding.h>

#include "watch/watch.h"

namespace torchnan {

// Keeps the finding in the watch and in the scopes around it, then does what the watch's options say. Throws if they
// say so.
void deliver(Watch& watch, Finding finding);

// The same for several that are found at once: all are kept before one is acted upon.
void deliver_all(Watch& watch, std::vector<Finding> findings);

}  // namespace torchnan
