// Resolves an alarm: reads the journal from there on, in host order, together with the results of the scans.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <torchnan/export.h>

#include "device/device_evidence.h"
#include "device/event.h"
#include "detection/session.h"

namespace torchnan {

// Returns the bad event with this number or, unless it is `alone`, an earlier one whose values its memory may still
// hold.
TORCHNAN_API std::optional<BadEvent> bad_event(EventNumber number, bool alone = false);

// Whether a bad value on a device is known and may still exist: harm then waits for the device.
TORCHNAN_API bool has_known_bad();

// Whether an alarm of this event would come too late to be attributed.
bool is_resolved(EventNumber number);

// Whether an error is raised now or at the next harm; never between two operations of an optimizer's step.
enum class Delivery : uint8_t { kNow, kDeferred };

// Waits for the devices, finds causes, and reports the recorded harm. Throws if a session demands that.
TORCHNAN_API void resolve(Delivery delivery);

// Ends an operation: if devices have raised the alarm, finds out and reports why. `is_read`: it hands a value to user
// code; then throws if a session demands that.
TORCHNAN_API void heed_alarm(DetectionSession& session, bool is_read);

// Reports harm of this kind by non-finite tensors on devices.
void report_on_devices(DetectionSession& session, HarmKind harm, const OpPlan& consumer,
                       c10::ArrayRef<at::Tensor> tensors);

// Returns the kinds that tensors on devices hold now; none for one that cannot be scanned. Waits for the devices.
TORCHNAN_API std::vector<NonfiniteKinds> kinds_on_devices(c10::ArrayRef<at::Tensor> tensors);

// Whether a tensor on a device may hold non-finite values now: false if a scan finds none. Waits for the device, unless
// a graph is being captured.
bool may_be_bad(const at::Tensor& tensor);

// Returns the provenance of the values that were last written into a tensor on a device; null if no cause is known.
// Waits for the devices.
TORCHNAN_API std::shared_ptr<const Provenance> provenance_of_last_write(const at::Tensor& tensor);

// Records that bad values with this provenance were written into a tensor on a device.
void record_bad_write(const at::Tensor& tensor, std::shared_ptr<const Provenance> provenance);

// A tensor of a bad event whose values still exist.
struct LiveBadTensor {
  at::Tensor tensor;
  BadEvent bad;
};
// Scans them once more: operations that were not intercepted may have written there.
std::vector<LiveBadTensor> live_bad_tensors();

// Forgets all events on devices when this session, the last one, has ended.
void forget_all_events(const DetectionSession& session);

}  // namespace torchnan
