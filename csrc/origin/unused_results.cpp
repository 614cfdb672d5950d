#include "origin/unused_results.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "origin/origin_records.h"
#include "origin/replayed_region.h"
#include "process/fork_safe_mutex.h"

namespace torchnan {
namespace {

using CallSite = std::tuple<std::string, SiteId, SiteId>;  // operator, stack, forward stack

using Candidates = std::map<CallSite, NonfiniteRegistry::ProvenancePtr>;
struct Registry {
  ForkSafeMutex mutex;
  std::map<const DetectionSession*, Candidates> by_session;
};

Registry& unused_results = *new Registry;  // never destroyed: threads may outlive static destructors
Registry& sent_results = *new Registry;

bool is_unused(const OriginRecord& origin) {
  return !origin.used && !origin.overwritten && !origin.reported && !origin.exempt && !origin.seen_by_scaler;
}

bool is_unreported(const OriginRecord& origin) {
  return !origin.reported && !origin.exempt && !origin.seen_by_scaler && !origin.compared;
}

// Keeps the first of a call site that `is_candidate`. The replay of a backward pass makes the origins of the forward
// pass again: these do not replace the first.
void record(Registry& registry, DetectionSession& session, const NonfiniteRegistry::ProvenancePtr& provenance,
            bool (*is_candidate)(const OriginRecord&)) {
  const OriginRecord& origin = *provenance->first().origin;
  NonfiniteRegistry::ProvenancePtr released;  // after the lock
  const std::lock_guard lock(registry.mutex);
  Candidates& candidates = registry.by_session[&session];
  const CallSite key{origin.facts.op, origin.site.live, origin.site.forward};
  const auto known = candidates.find(key);
  if (known == candidates.end()) {
    if (static_cast<int64_t>(candidates.size()) < session.options().max_findings) candidates.emplace(key, provenance);
  } else if (replayed_region() == nullptr && !is_candidate(*known->second->first().origin)) {
    released = std::exchange(known->second, provenance);
  }
}

std::vector<NonfiniteRegistry::ProvenancePtr> drain(Registry& registry, const DetectionSession& session,
                                                    bool (*is_candidate)(const OriginRecord&)) {
  Candidates candidates;
  {
    const std::lock_guard lock(registry.mutex);
    const auto found = registry.by_session.find(&session);
    if (found == registry.by_session.end()) return {};
    candidates.swap(found->second);
    registry.by_session.erase(found);
  }
  std::vector<NonfiniteRegistry::ProvenancePtr> drained;
  for (const auto& [site, provenance] : candidates) {
    const OriginRecord& origin = *provenance->first().origin;
    if (is_candidate(origin) && !is_of_skipped_step(session, origin)) drained.push_back(provenance);
  }
  std::sort(drained.begin(), drained.end(),
            [](const auto& a, const auto& b) { return a->first().origin->sequence < b->first().origin->sequence; });
  return drained;
}

}  // namespace

void record_unused(DetectionSession& session, const NonfiniteRegistry::ProvenancePtr& provenance) {
  record(unused_results, session, provenance, is_unused);
}

void record_unused_if_new(DetectionSession& session, const NonfiniteRegistry::ProvenancePtr& provenance) {
  const auto& causes = provenance->causes();
  const bool is_new = std::any_of(causes.begin(), causes.end(), [](const Cause& cause) {
    return cause.steps.empty() && !cause.origin->is_intentional();
  });
  if (is_new) record_unused(session, provenance);
}

std::vector<NonfiniteRegistry::ProvenancePtr> drain_unused(const DetectionSession& session) {
  return drain(unused_results, session, is_unused);
}

void record_sent(DetectionSession& session, const NonfiniteRegistry::ProvenancePtr& provenance) {
  const bool is_passed_on = !provenance->first().origin->collective.empty();  // another rank reports it
  if (!provenance->is_intentional() && !is_passed_on) record(sent_results, session, provenance, is_unreported);
}

std::vector<NonfiniteRegistry::ProvenancePtr> drain_sent(const DetectionSession& session) {
  return drain(sent_results, session, is_unreported);
}

}  // namespace torchnan
