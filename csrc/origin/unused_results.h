// Non-finite results that are told of at the end, unless they do harm first: nothing has read them, or only other
// ranks.
#pragma once

#include <vector>

#include "origin/nonfinite_registry.h"
#include "detection/session.h"

namespace torchnan {

// Remembers an origin until it is used, one per call site. Bounded by the session's max_findings.
void record_unused(DetectionSession& session, const NonfiniteRegistry::ProvenancePtr& provenance);

// The same of a result, if it is what an operation has made anew and not on purpose.
void record_unused_if_new(DetectionSession& session, const NonfiniteRegistry::ProvenancePtr& provenance);

// Returns the origins of this session that were never read nor reported, oldest first, and forgets them.
std::vector<NonfiniteRegistry::ProvenancePtr> drain_unused(const DetectionSession& session);

// Remembers an origin that this rank has sent to others, one per call site. Bounded by the session's max_findings.
void record_sent(DetectionSession& session, const NonfiniteRegistry::ProvenancePtr& provenance);

// Returns the origins that were sent and have done no harm here, oldest first, and forgets them: the others need to
// know who has made them.
std::vector<NonfiniteRegistry::ProvenancePtr> drain_sent(const DetectionSession& session);

}  // namespace torchnan
