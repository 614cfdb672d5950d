// Scans that one call launches on the current streams of devices.
#pragma once

#include <ATen/core/Tensor.h>

#include "check/bounds/prediction.h"
#include "detection/thread_state.h"
#include "device/devices.h"

namespace torchnan {

// Collects the scans of one device at a time. Lives on the stack of the call.
class StreamScans {
 public:
  StreamScans(ThreadState& thread, const DetectionSession& session) : thread_(thread), session_(session) {}

  // The stream of the device that was chosen last; without a scanner before that.
  const CurrentStream& stream() const { return stream_; }

  // Chooses a device. Launches the pending scans if they belong to another one.
  void choose(c10::Device device);

  // Makes room for one more scan, because no scan may be launched while the lock is held.
  void make_room(Devices::Lock& locked) {
    if (scans_.is_full()) launch_unlocked(locked);
  }

  // Gives the event the bound that was predicted for its values or, if they are not proved finite, the bound that their
  // scan checks.
  void fill_bound(Devices::Lock& locked, Event& event, const at::Tensor& tensor, const Prediction& predicted);

  // Adds the scan of the event's tensor, or lets it wait for those of other calls.
  void add(Devices::Lock& locked, Event& event, const at::Tensor& tensor, bool may_wait);

  // Adds an event for a tensor that is read, of which `last` was the last event seen, and its scan. Returns null if
  // there is no room for it.
  Event* add_unknown(Devices::Lock& locked, const at::Tensor& tensor, EventNumber last, const EventContext& context);

  void launch();
  // Launches them, and those of other calls if too many wait.
  void finish();

 private:
  void launch_unlocked(Devices::Lock& locked);

  ThreadState& thread_;
  const DetectionSession& session_;
  CurrentStream stream_;
  ScanList scans_;
  bool has_filled_batch_ = false;
};

}  // namespace torchnan
