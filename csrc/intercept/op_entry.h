// The start of every intercepted call, before its handling is chosen.
#pragma once

#include <torchnan/export.h>

#include "base/runtime.h"
#include "detection/thread_state.h"
#include "check/operators/op_plan.h"

namespace torchnan {

// Counts the call, and records its call site if it belongs to a backward node that was made since the last call.
// Returns the call site, 0 if it was not looked up.
SiteId record_op_entry(ThreadState& thread, DetectionSession& session);

// Checks the root of a backward pass if the call is its first one. Throws if the session's options demand it.
void check_backward_start(ThreadState& thread, DetectionSession& session);

// Whether calls of the backward pass, if this is one, are to be checked.
TORCHNAN_API bool is_active_in_backward(const DetectionSession& session);

// What the options of a session say about a call.
enum class Checking : uint8_t {
  kOff,      // it belongs to a backward pass, which is not checked
  kSkipped,  // skip_ops names its operator: its results are intentional
  kOn,
};
Checking checking_of(const OpPlan& plan, const DetectionSession& session);

}  // namespace torchnan
