// The known facts about tensors on devices from the journal, outside of a call.
#pragma once

#include "device/journal.h"

namespace torchnan {

// Takes the lock of the journal.
Journal::RecordedKnowledge recorded_knowledge(const at::Tensor& tensor);

}  // namespace torchnan
