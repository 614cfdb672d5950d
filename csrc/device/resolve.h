// Why the alarm was raised: the journal is read from there on, in the order of the host, with what the scans have
// found.
#pragma once

#include <optional>

#include <c10/util/ArrayRef.h>

#include <torchnan/export.h>

#include "check/kinds.h"
#include "device/event.h"
#include "watch/watch.h"

namespace torchnan {

// An event whose values are not finite, or not what they are meant to be.
struct BadEvent {
  Kinds kinds;
  std::shared_ptr<const Record> record;
};
std::optional<BadEvent> bad_event(EventNumber number);

// Whether something on a device has been found to be bad, and is not known to be gone: what does harm is then waited
// for.
bool is_in_trouble();

// Waits for the devices, finds causes, and tells of the harm that has been noted. Throws if a watch wants that.
TORCHNAN_API void resolve();

// What tensors on devices hold does this harm, if it is not finite.
void judge_on_devices(Watch& watch, HarmKind harm, const OpPlan& reader, c10::ArrayRef<at::Tensor> tensors);

// Detection ends. `judge`: what has happened under this watch is resolved, and what the program still holds is told.
void end_on_devices(Watch& watch, bool judge);

}  // namespace torchnan
