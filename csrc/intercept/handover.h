// Describes the non-finite values of a tensor for the process that receives it.
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
  Finding facts;  // the finding that this process would report
};

// Returns the causes of the non-finite values in a tensor that is about to leave this process, with `process` as the
// name of this one. A mask of -inf has none.
TORCHNAN_API std::vector<HandedOver> describe_for_others(const at::Tensor& tensor, const std::string& process);

// Records the causes that another process has sent with a tensor.
TORCHNAN_API void record_received(DetectionSession& session, const at::Tensor& tensor, std::vector<HandedOver> causes);

}  // namespace torchnan
