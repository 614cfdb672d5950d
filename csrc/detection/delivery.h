// Delivers a finding: keeps it, logs it, and acts upon it.
#pragma once

#include <vector>

#include <torchnan/finding.h>

#include "detection/session.h"

namespace torchnan {

// Keeps the finding in the session and in the scopes around it, then takes the action of the session's options. May
// throw.
void deliver(DetectionSession& session, Finding finding);

// The same for several that are found at once: all are kept before one is acted upon.
void deliver_all(DetectionSession& session, std::vector<Finding> findings);

// The same, but an error that would be raised is left to raise_deferred().
void deliver_deferred(DetectionSession& session, std::vector<Finding> findings);

// Raises the first deferred error; called where harm is done.
void raise_deferred(DetectionSession& session);

}  // namespace torchnan
