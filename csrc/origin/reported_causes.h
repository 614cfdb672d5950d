// What was reported of a step, where one cause has several origins: an operation of the forward pass and its own
// backward node, or what a collective has brought to many tensors.
#pragma once

#include <memory>

#include "origin/provenance.h"

namespace torchnan {

// Records that an origin was reported.
void record_reported(const DetectionSession& session, const OriginRecord& origin);

// Whether an operation in a backward node is the consequence of one that was reported: of the forward call that made
// the node, in the same step.
bool is_reported_in_forward_pass(const DetectionSession& session, const OriginRecord& origin);

// Returns the origin of what this collective has brought in the step of `origin`: `origin`, if it is the first.
std::shared_ptr<OriginRecord> origin_of_collective(const DetectionSession& session,
                                                   std::shared_ptr<OriginRecord> origin);

// Forgets a session that ends.
void forget_reported(const DetectionSession& session);

}  // namespace torchnan
