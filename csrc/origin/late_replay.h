// Replays the call of a compiled region after it has returned: when a device reports a non-finite result.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <c10/util/FunctionRef.h>

#include <torchnan/export.h>

#include "detection/session.h"
#include "origin/provenance.h"
#include "check/scan/nonfinite_kinds.h"

namespace torchnan {

struct LateReplay {
  std::shared_ptr<const Provenance> provenance;  // null if it was not found
  std::string obstacle;                          // why not; empty if the call was not kept
};

// Returns the non-finite kinds that the device found at the event with this number.
using KindsOfEvent = c10::function_ref<NonfiniteKinds(uint64_t)>;

// Finds the provenance of a result, given the number of the event that recorded it. The caller must not hold a lock.
using LateReplayer = LateReplay (*)(DetectionSession& session, uint64_t event, KindsOfEvent kinds_of);

// Calls the runtime's function; without a runtime, no call is kept.
LateReplay replay_late(DetectionSession& session, uint64_t event, KindsOfEvent kinds_of);
TORCHNAN_API void set_late_replayer(LateReplayer replayer);

}  // namespace torchnan
