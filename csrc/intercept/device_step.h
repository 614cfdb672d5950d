// The results on devices of a step of Adam that was proved as a whole.
#pragma once

#include <initializer_list>

#include <ATen/core/Tensor.h>

#include "check/bounds/adam_step.h"
#include "check/bounds/prediction.h"
#include "detection/thread_state.h"
#include "device/devices.h"
#include "device/stream_scans.h"

namespace torchnan {

// Records the step as three operations on lists, although PyTorch has run others: these state which tensors depend on
// which. Allocates nothing.
class DeviceStep {
 public:
  static constexpr int64_t kResults = 3;  // recorded for each update

  // `times_voided`: of devices, when the step was proved. If proofs have been discarded since then, everything is
  // scanned.
  DeviceStep(ThreadState& thread, DetectionSession& session, uint64_t times_voided);

  // Records an update that has run. A parameter that is not proved is scanned. `has_history`: whether one of the
  // moments is known.
  void add(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& first_moment,
           const at::Tensor& second_moment, const AdamBounds& after, bool is_parameter_proved, bool has_history);

  // Launches the scans, and heeds an alarm only then: what is recorded after an alarm was heeded is not scanned again.
  void finish();

 private:
  void record(Devices::Lock& locked, const EventContext& operation, const at::Tensor& written,
              std::initializer_list<EventInput> read, const Prediction& predicted);

  ThreadState& thread_;
  DetectionSession& session_;
  const bool is_proof_void_;
  const EventContext average_, square_, update_;  // the operations, in their order
  StreamScans scans_;
  int32_t index_ = 0;  // of the next update, in the lists
};

}  // namespace torchnan
