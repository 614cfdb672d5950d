// What is known of a tensor's non-finite values, for the process that the tensor is handed to.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchnan/export.h>

#include "detection/session.h"
#include "origin/provenance.h"

namespace torchnan {

// One cause, as another process can read it.
struct HandedOver {
  OriginRecord::Source source = OriginRecord::Source::kOperation;
  NonfiniteKinds kinds;
  Finding facts;  // as this process would report them
};

// Returns the causes of what is not finite in a tensor that is about to leave this process, with `process` for the name
// of this one; none of a mask of -inf.
TORCHNAN_API std::vector<HandedOver> describe_for_others(const at::Tensor& tensor, const std::string& process);

// Remembers what another process has said of a tensor that came from it.
TORCHNAN_API void record_received(DetectionSession& session, const at::Tensor& tensor, std::vector<HandedOver> causes);

}  // namespace torchnan
