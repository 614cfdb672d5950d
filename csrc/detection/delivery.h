// A finding on its way out: kept, logged, and acted upon.
#pragma once

#include <vector>

#include <torchnan/finding.h>

#include "detection/session.h"

namespace torchnan {

// Keeps the finding in the session and in the scopes around it, then does what the session's options say. Throws if
// they say so.
void deliver(DetectionSession& session, Finding finding);

// The same for several that are found at once: all are kept before one is acted upon.
void deliver_all(DetectionSession& session, std::vector<Finding> findings);

}  // namespace torchnan
