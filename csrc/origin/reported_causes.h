// The causes that a step has reported. One cause may have several origins: an operation and its backward node, the
// tensors of one collective, or the tensors that an optimizer updates with one number.
#pragma once

#include <memory>
#include <optional>
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

// Returns the common origin of values with a common cause in the step of `origin`, or in the turn of a program without
// steps: `origin` itself, if it is the first.
std::shared_ptr<OriginRecord> one_origin_of(const std::string& cause, const DetectionSession& session,
                                            std::shared_ptr<OriginRecord> origin);

// Records that a value of another rank was reported in the weights of this one, or in gradients that the step applies.
void record_bad_weights(const DetectionSession& session);

// Whether such weights were reported in the step of `origin`, or in the one before it: the loss that is logged after an
// optimizer step counts for the next step.
bool is_beside_bad_weights(const DetectionSession& session, const OriginRecord& origin);

// A NaN that an operation had made and user code has read: where, and its origin.
struct ReadNan {
  std::shared_ptr<const OriginRecord> origin;
  SiteId site = 0;
  uint64_t sequence = 0;  // of the next origin
};

// Records that user code reads a NaN.
void record_read(const DetectionSession& session, const std::shared_ptr<const OriginRecord>& origin);

// Returns the last NaN that user code has read before `origin` was recorded, one of the first few that it read.
std::optional<ReadNan> read_before(const DetectionSession& session, const OriginRecord& origin);

}  // namespace torchnan
