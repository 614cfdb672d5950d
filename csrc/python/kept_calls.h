// The last calls of compiled regions on devices. A device reports later than the call returns: then it is replayed.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>

#include "detection/session.h"

namespace torchnan {

class RegionCall;

// Forgets the calls of other steps of the session than this one and the last. The functions need the GIL.
void forget_calls_of_other_steps(DetectionSession& session);

// Keeps a call. Releases the memory of the oldest ones if that of all calls exceeds the session's max_copied_bytes.
void keep(std::shared_ptr<RegionCall> call, DetectionSession& session);

// Returns the bytes that all of them keep alive.
int64_t bytes_of_kept_calls();

// Forgets the calls of a session.
void forget_kept_calls(DetectionSession& session);

// Lets devices replay the kept calls.
void install_late_replays();

}  // namespace torchnan
