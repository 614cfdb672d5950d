// What every intercepted call begins with, whatever becomes of it.
#pragma once

#include "host/host_runtime.h"
#include "detection/thread_state.h"

namespace torchnan {

// Counts the call, notes where the node that it belongs to was made, and judges the roots of a backward pass that
// begins with it. Returns the call site, if it had to be looked up.
SiteId record_op_entry(ThreadState& thread, DetectionSession& session);

// Whether calls of the backward pass, if this is one, are judged.
bool is_active_in_backward(const DetectionSession& session);

}  // namespace torchnan
