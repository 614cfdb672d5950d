// Resolves an alarm: reads the journal from there on, in the order of the host, with what the scans have found.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <torchnan/export.h>

#include "device/device_evidence.h"
#include "device/event.h"
#include "detection/session.h"

namespace torchnan {

// Returns what is known of an event, or of one before it whose values its memory still holds.
TORCHNAN_API std::optional<BadEvent> bad_event(EventNumber number);

// Whether something on a device has been found to be bad, and is not known to be gone: harm then waits for the device.
TORCHNAN_API bool has_known_bad();

// Whether an error is raised now, or at the next harm: never between two operations of an optimizer's step.
enum class Delivery : uint8_t { kNow, kDeferred };

// Waits for the devices, finds causes, and reports the harm that has been recorded. Throws if a session wants that.
TORCHNAN_API void resolve(Delivery delivery);

// Reports harm of this kind by tensors on devices that are not finite.
void report_on_devices(DetectionSession& session, HarmKind harm, const OpPlan& consumer,
                       c10::ArrayRef<at::Tensor> tensors);

// A tensor of a bad event whose values are still there.
struct LiveBadTensor {
  at::Tensor tensor;
  BadEvent bad;
};
// Scans them once more: others than the operations that were intercepted may have written there.
std::vector<LiveBadTensor> live_bad_tensors(DetectionSession& session);

// Forgets all that has happened on devices, when no session is left.
void forget_all_events();

}  // namespace torchnan
