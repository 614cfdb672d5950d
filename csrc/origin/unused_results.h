// Non-finite results that are reported at the end, unless they do harm first: nothing has read them, or only other
// ranks.
#pragma once

#include <string>
#include <vector>

#include "origin/nonfinite_registry.h"
#include "detection/session.h"

namespace torchnan {

// Records an origin until it is used, one per call site. Bounded by the session's max_findings.
void record_unused(DetectionSession& session, const NonfiniteRegistry::ProvenancePtr& provenance);

// The same for a result, if an operation made it anew and unintentionally.
void record_unused_if_new(DetectionSession& session, const NonfiniteRegistry::ProvenancePtr& provenance);

// Returns the origins of this session that were neither read nor reported, oldest first, and removes them.
std::vector<NonfiniteRegistry::ProvenancePtr> drain_unused(const DetectionSession& session);

// Non-finite values that this rank sends to others.
struct SentValues {
  NonfiniteRegistry::ProvenancePtr provenance;
  bool to_reduction = false;                 // the collective combines them with those of other ranks
  const std::string* known_place = nullptr;  // the collective, if it is known which of its results' elements they reach
};

// Records the origin of sent values, one per call site. Bounded by the session's max_findings.
void record_sent(DetectionSession& session, const SentValues& sent);

// Returns a value of another origin that this rank has sent in the step in which it received `received`, and that may
// have come back: one that was reported, else the first that this rank made and that may still do harm; null if there
// is none.
NonfiniteRegistry::ProvenancePtr sent_before(const DetectionSession& session, const OriginRecord& received);

// Returns the origins that were sent and have done no harm here, oldest first, and removes them: the other ranks need
// to know which rank made them.
std::vector<NonfiniteRegistry::ProvenancePtr> drain_sent(const DetectionSession& session);

}  // namespace torchnan
