#include "origin/unused_results.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "origin/inference_turn.h"
#include "origin/origin_records.h"
#include "origin/replayed_region.h"
#include "origin/reported_causes.h"

namespace torchnan {
namespace {

using CallSite = std::tuple<std::string, SiteId, SiteId>;  // operator, stack, forward stack

using Candidates = std::map<CallSite, NonfiniteRegistry::ProvenancePtr>;

struct UnusedResults : Candidates {};
struct SentResults : Candidates {};

// What a session has sent in its last step that sent any.
struct SentInStep {
  static constexpr size_t kMost = 64;

  int64_t step = 0;
  int64_t turn = 0;                // in a program without steps
  std::vector<SentValues> values;  // each of another origin
};

const OriginRecord& origin_of(const NonfiniteRegistry::ProvenancePtr& values) { return *values->first().origin; }

void record_sent_in_step(const DetectionSession& session, const SentValues& values) {
  std::vector<SentValues> released;  // after the lock
  session.with_kept<SentInStep>([&](SentInStep& sent) {
    const int64_t turn = inference_turn(session);
    if (sent.step != session.step() || sent.turn != turn) released.swap(sent.values);
    sent.step = session.step();
    sent.turn = turn;
    const auto known = std::find_if(sent.values.begin(), sent.values.end(), [&](const SentValues& one) {
      return &origin_of(one.provenance) == &origin_of(values.provenance);
    });
    if (known != sent.values.end()) {
      known->to_reduction |= values.to_reduction;
      if (known->known_place != values.known_place) known->known_place = nullptr;
    } else if (sent.values.size() < SentInStep::kMost) {
      sent.values.push_back(values);
    }
  });
}

bool is_unused(const OriginRecord& origin) {
  return !origin.used && !origin.overwritten && !origin.reported && !origin.exempt && !origin.seen_by_scaler;
}

bool is_unreported(const OriginRecord& origin) {
  return !origin.reported && !origin.exempt && !origin.seen_by_scaler && !origin.compared;
}

// Whether another rank has made the values, and reports them.
bool is_passed_on(const OriginRecord& origin) { return !origin.collective.empty(); }

// Keeps the first of a call site that `is_candidate`. The replay of a backward pass makes the origins of the forward
// pass again: these do not replace the first.
template <typename Results>
void record(DetectionSession& session, const NonfiniteRegistry::ProvenancePtr& provenance,
            bool (*is_candidate)(const OriginRecord&)) {
  const OriginRecord& origin = *provenance->first().origin;
  NonfiniteRegistry::ProvenancePtr released;  // after the lock
  session.with_kept<Results>([&](Results& candidates) {
    const CallSite key{origin.facts.op, origin.site.live, origin.site.forward};
    const auto known = candidates.find(key);
    if (known == candidates.end()) {
      if (static_cast<int64_t>(candidates.size()) < session.options().max_findings) candidates.emplace(key, provenance);
    } else if (replayed_region() == nullptr && !is_candidate(*known->second->first().origin)) {
      released = std::exchange(known->second, provenance);
    }
  });
}

template <typename Results>
std::vector<NonfiniteRegistry::ProvenancePtr> drain(const DetectionSession& session,
                                                    bool (*is_candidate)(const OriginRecord&)) {
  const auto candidates = session.with_kept<Results>([](Results& kept) { return std::exchange(kept, {}); });
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
  record<UnusedResults>(session, provenance, is_unused);
}

void record_unused_if_new(DetectionSession& session, const NonfiniteRegistry::ProvenancePtr& provenance) {
  const auto& causes = provenance->causes();
  const bool is_new = std::any_of(causes.begin(), causes.end(), [](const Cause& cause) {
    return cause.steps.empty() && !cause.origin->is_intentional();
  });
  if (is_new) record_unused(session, provenance);
}

std::vector<NonfiniteRegistry::ProvenancePtr> drain_unused(const DetectionSession& session) {
  return drain<UnusedResults>(session, is_unused);
}

void record_sent(DetectionSession& session, const SentValues& sent) {
  const Provenance& provenance = *sent.provenance;
  OriginRecord& origin = *provenance.first().origin;
  if (provenance.is_intentional() && !provenance.first().kinds.nan()) return;  // a mask
  if (is_reported_in_forward_pass(session, origin)) origin.reported = true;    // the same cause
  record_sent_in_step(session, sent);
  if (!is_passed_on(origin)) record<SentResults>(session, sent.provenance, is_unreported);
}

NonfiniteRegistry::ProvenancePtr sent_before(const DetectionSession& session, const OriginRecord& received) {
  const int64_t turn = inference_turn(session);
  return session.with_kept<SentInStep>([&](const SentInStep& step) {
    NonfiniteRegistry::ProvenancePtr own;
    if (step.step != received.site.step || step.turn != turn) return own;
    for (const auto& [sent, to_reduction, known_place] : step.values) {
      const OriginRecord& origin = origin_of(sent);
      const bool is_elsewhere = known_place != nullptr && *known_place == received.collective;
      if (&origin == &received || is_elsewhere) continue;
      // A gradient may come back as a weight, a metric does not.
      const bool may_come_back = to_reduction || !received.owner || origin.facts.phase == Phase::kBackward;
      if (!may_come_back) continue;
      if (origin.reported) return sent;
      const bool may_do_harm = is_unreported(origin) && !is_passed_on(origin) && !sent->is_intentional();
      const bool is_absorbed = origin.computed && !origin.propagated;  // here, so also where it was sent
      if (own == nullptr && may_do_harm && !is_absorbed) own = sent;
    }
    return own;
  });
}

std::vector<NonfiniteRegistry::ProvenancePtr> drain_sent(const DetectionSession& session) {
  return drain<SentResults>(session, is_unreported);
}

}  // namespace torchnan
