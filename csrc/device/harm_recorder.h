// Records harm that tensors on devices do, before it is known whether they are finite.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <torchnan/finding.h>

#include "device/devices.h"

namespace torchnan {

// Takes a tensor at a time, and records those whose last event was checked as one event at the end: a list of gradients
// takes one. What nobody has seen is scanned.
class HarmRecorder {
 public:
  HarmRecorder(HarmKind harm, const EventContext& context) : harm_(harm), context_(context) {}
  HarmRecorder(const HarmRecorder&) = delete;
  HarmRecorder& operator=(const HarmRecorder&) = delete;

  void add(const at::Tensor& tensor);
  void finish();

 private:
  bool has_to_be_scanned(const Event* written) const;

  const HarmKind harm_;
  const EventContext& context_;
  CurrentStream stream_;
  TensorSnapshot last_;
  c10::SmallVector<EventInput, Event::kMaxInputs> seen_;
};

}  // namespace torchnan
