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

// The same, but an error that would be raised is left to raise_deferred().
void deliver_deferred(DetectionSession& session, std::vector<Finding> findings);

// Raises the first error that was left to this; called where harm is done.
void raise_deferred(DetectionSession& session);

}  // namespace torchnan
