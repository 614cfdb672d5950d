// Why the alarm was raised: the journal is read from there on, in the order of the host, with what the scans have
// found.
#pragma once

#include <optional>

#include <c10/util/ArrayRef.h>

#include <torchnan/export.h>

#include "scan/nonfinite_kinds.h"
#include "device/event.h"
#include "detection/session.h"

namespace torchnan {

// An event whose values are not finite, or not what they are meant to be.
struct BadEvent {
  NonfiniteKinds kinds;
  std::shared_ptr<const Provenance> record;
};
std::optional<BadEvent> bad_event(EventNumber number);

// Whether something on a device has been found to be bad, and is not known to be gone: what does harm is then waited
// for.
bool has_known_bad();

// Waits for the devices, finds causes, and tells of the harm that has been noted. Throws if a session wants that.
TORCHNAN_API void resolve();

// What tensors on devices hold does this harm, if it is not finite.
void report_on_devices(DetectionSession& session, HarmKind harm, const OpPlan& reader,
                       c10::ArrayRef<at::Tensor> tensors);

// Ends the session on devices. With `report_pending`, resolves what has happened under it and reports what user code
// still references. With the last session, forgets all events.
void end_on_devices(DetectionSession& session, bool report_pending);

}  // namespace torchnan
