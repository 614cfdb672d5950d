// The causes that a step has reported. One cause may have several origins: an operation and its backward node, the
// tensors of one collective, or the tensors that an optimizer updates with one number.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "origin/provenance.h"

namespace torchnan {

// The node of a backward graph that a backend of torch.compile runs operation by operation.
inline constexpr std::string_view kCompiledNode = "CompiledFunctionBackward";

// Records that an origin was reported.
void record_reported(const DetectionSession& session, const OriginRecord& origin);

// Whether an operation in a backward node is the consequence of a reported one in the same step: of the forward call
// that made the node, or of the call that a checkpoint or the backward pass of a region runs again there.
bool is_reported_in_forward_pass(const DetectionSession& session, const OriginRecord& origin);

// Returns the common origin of values with a common cause in the step of `origin`: `origin` itself, if it is the first.
std::shared_ptr<OriginRecord> one_origin_of(const std::string& cause, const DetectionSession& session,
                                            std::shared_ptr<OriginRecord> origin);

// Forgets a session that ends.
void forget_reported(const DetectionSession& session);

}  // namespace torchnan
