// The known facts about tensors on devices from the journal, outside of a call.
#pragma once

#include "bounds/bound_source.h"
#include "device/journal.h"

namespace torchnan {

// Takes the lock of the journal.
Journal::RecordedKnowledge recorded_knowledge(const at::Tensor& tensor);

class RecordedBounds final : public ExternalBounds {
 public:
  Bound bound_of(const at::Tensor& tensor) const override { return recorded_knowledge(tensor).bound; }
  bool is_made_by(const at::Tensor& tensor, std::string_view op) const override {
    return recorded_knowledge(tensor).is_made_by(op);
  }
  uint64_t write_of(const at::Tensor& tensor) const override { return recorded_knowledge(tensor).write_number(); }
};

}  // namespace torchnan
