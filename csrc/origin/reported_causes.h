// What was reported of a step, where one cause has several origins: an operation of the forward pass and its own
// backward node, what a collective has brought to many tensors, or a number with which an optimizer updates them.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "origin/provenance.h"

namespace torchnan {

// The node of what a backend of torch.compile has made of a backward graph, where it runs it operation by operation.
inline constexpr std::string_view kCompiledNode = "CompiledFunctionBackward";

// Records that an origin was reported.
void record_reported(const DetectionSession& session, const OriginRecord& origin);

// Whether an operation in a backward node is the consequence of one that was reported: of the forward call that made
// the node, in the same step.
bool is_reported_in_forward_pass(const DetectionSession& session, const OriginRecord& origin);

// Returns the one origin of what has a common cause in the step of `origin`: `origin`, if it is the first.
std::shared_ptr<OriginRecord> one_origin_of(const std::string& cause, const DetectionSession& session,
                                            std::shared_ptr<OriginRecord> origin);

// Forgets a session that ends.
void forget_reported(const DetectionSession& session);

}  // namespace torchnan
