// Records harm by tensors on devices before it is known whether they are finite.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <torchnan/finding.h>

#include "device/stream_scans.h"

namespace torchnan {

// Takes one tensor at a time. At the end it records those whose last event was checked as one event: a list of
// gradients takes one event. Tensors without an observed write are scanned, in one launch.
class HarmRecorder {
 public:
  HarmRecorder(HarmKind harm, const EventContext& context, const DetectionSession& session)
      : harm_(harm), context_(context), scans_(ThreadState::current(), session) {}
  HarmRecorder(const HarmRecorder&) = delete;
  HarmRecorder& operator=(const HarmRecorder&) = delete;

  void add(const at::Tensor& tensor);
  void finish();

 private:
  bool has_to_be_scanned(const Event* written, bool is_alone) const;

  const HarmKind harm_;
  const EventContext& context_;
  StreamScans scans_;
  TensorSnapshot last_;
  c10::SmallVector<EventInput, Event::kMaxInputs> seen_;
};

}  // namespace torchnan
