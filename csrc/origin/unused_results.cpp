#include "origin/unused_results.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "origin/origin_records.h"
#include "process/fork_safe_mutex.h"

namespace torchnan {
namespace {

using CallSite = std::tuple<std::string, SiteId, SiteId>;  // operator, stack, forward stack

struct Registry {
  ForkSafeMutex mutex;
  std::map<const DetectionSession*, std::map<CallSite, NonfiniteRegistry::ProvenancePtr>> by_session;
};

Registry& registry = *new Registry;  // never destroyed: threads may outlive static destructors

bool is_unused(const OriginRecord& origin) {
  return !origin.used && !origin.overwritten && !origin.reported && !origin.exempt && !origin.seen_by_scaler;
}

}  // namespace

void record_unused(DetectionSession& session, const NonfiniteRegistry::ProvenancePtr& provenance) {
  const OriginRecord& origin = *provenance->first().origin;
  NonfiniteRegistry::ProvenancePtr released;  // after the lock
  const std::lock_guard lock(registry.mutex);
  auto& candidates = registry.by_session[&session];
  const CallSite key{origin.facts.op, origin.site.live, origin.site.forward};
  const auto known = candidates.find(key);
  if (known == candidates.end()) {
    if (static_cast<int64_t>(candidates.size()) < session.options().max_findings) candidates.emplace(key, provenance);
  } else if (!is_unused(*known->second->first().origin)) {
    released = std::exchange(known->second, provenance);
  }
}

void record_unused_if_new(DetectionSession& session, const NonfiniteRegistry::ProvenancePtr& provenance) {
  const auto& causes = provenance->causes();
  const bool is_new = std::any_of(causes.begin(), causes.end(), [](const Cause& cause) {
    return cause.steps.empty() && !cause.origin->is_intentional();
  });
  if (is_new) record_unused(session, provenance);
}

std::vector<NonfiniteRegistry::ProvenancePtr> drain_unused(const DetectionSession& session) {
  std::map<CallSite, NonfiniteRegistry::ProvenancePtr> candidates;
  {
    const std::lock_guard lock(registry.mutex);
    const auto found = registry.by_session.find(&session);
    if (found == registry.by_session.end()) return {};
    candidates.swap(found->second);
    registry.by_session.erase(found);
  }
  std::vector<NonfiniteRegistry::ProvenancePtr> unused;
  for (const auto& [site, provenance] : candidates) {
    const OriginRecord& origin = *provenance->first().origin;
    if (is_unused(origin) && !is_of_skipped_step(session, origin)) unused.push_back(provenance);
  }
  std::sort(unused.begin(), unused.end(),
            [](const auto& a, const auto& b) { return a->first().origin->sequence < b->first().origin->sequence; });
  return unused;
}

}  // namespace torchnan
