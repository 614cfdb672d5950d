// Non-finite results that nobody has read yet: the candidates for the warning at the end.
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

}  // namespace torchnan
