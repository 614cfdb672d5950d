// Roots that were born on a device: told from what was noted then, and from what is still there.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <c10/util/FunctionRef.h>

#include "device/event.h"
#include "detection/session.h"

namespace torchnan {

// The largest magnitude that an event was seen to hold, as a masked word; absent if nobody has looked.
using MostOf = c10::function_ref<std::optional<uint64_t>(const Event&)>;

// Of an event that is bad though what it was given is not: its operation has made that, or it came in. Its values are
// counted if they are still there; waits for the device.
std::shared_ptr<OriginRecord> device_root(const Event& event, NonfiniteKinds kinds, DetectionSession& session,
                                          MostOf most_of);

// The event may be the first to compute with what came in or was meant.
// `input`: by which it does; null if that is on the host.
void record_first_use(const Event& event, const EventInput* input, OriginRecord& root);

// Of the module parameter or buffer whose memory this is; empty if it is none.
std::string owner_name(const Event& event, const DetectionSession& session);

}  // namespace torchnan
