#include "origin/make_finding.h"

#include "host/environment.h"
#include "operators/op_plan.h"
#include "origin/host_queries.h"
#include "report/hint.h"

namespace torchnan {
namespace {

LineageStep fill_step(const Step& step, const DetectionSession& session) {
  const Frame frame = frame_of(step.site, session);
  return {step.plan->name, frame.file, frame.line};
}

void fill_entry(const Entry& entry, Finding& finding) {
  finding.op = entry.facts.op;
  finding.overload = entry.facts.overload;
  finding.output = 0;
  finding.stack = entry.facts.stack;
  finding.module = entry.facts.module;
  finding.phase = entry.facts.phase;
  finding.node = entry.facts.node;
  finding.step = entry.facts.step;
}

// A mask does no harm by itself: the operation that computed with it does.
void fill_computation(const Cause& cause, const DetectionSession& session, Finding& finding) {
  if (!cause.first_computation) return;
  finding.op = cause.first_computation->plan->name;
  finding.overload = cause.first_computation->plan->overload;
  Site site = cause.root->site;
  site.live = cause.first_computation->site;
  fill_location(site, session, finding);
}

// A value that no operation made: whose memory is it?
void fill_external_kind(const Cause& cause, const DetectionSession& session, Finding& finding) {
  const OriginRecord& root = *cause.root;
  const Entry* entry = root.entry();
  if (entry != nullptr) fill_entry(*entry, finding);
  if (entry != nullptr && entry->owner) {
    finding.origin = entry->owner->is_buffer ? Origin::kBuffer : Origin::kParameter;
    finding.name = entry->owner->name;
  } else if (root.parameter) {
    finding.origin = Origin::kParameter;
    if (root.owner) finding.name = root.owner->name;
  } else if (root.unwritten) {
    finding.origin = Origin::kUninit;
    finding.op = root.allocator;  // and the line that asked for it; the module stays that of the reader
    finding.overload.clear();
    finding.stack = query_site(root.allocation, session).stack;
  } else if (root.foreign) {
    finding.origin = Origin::kForeign;
  } else if (root.source == OriginRecord::Source::kExternal || (root.kinds.nan() && !root.scalar)) {
    finding.origin = Origin::kInput;
  } else {
    fill_computation(cause, session, finding);
  }
}

}  // namespace

Frame frame_of(SiteId id, const DetectionSession& session) {
  Site site;
  site.live = id;
  const ResolvedSite place = query_site(site, session);
  return place.stack.empty() ? Frame{} : place.stack.front();
}

void fill_location(const Site& site, const DetectionSession& session, Finding& finding) {
  ResolvedSite place = query_site(site, session);
  finding.stack = std::move(place.stack);
  finding.module = std::move(place.module);
  finding.phase = place.phase;
  finding.node = site.node;
}

Finding make_finding(const Cause& cause, Level level, Harm harm, const DetectionSession& session) {
  const OriginRecord& root = *cause.root;
  Finding finding = root.facts;
  finding.level = level;
  finding.harm = std::move(harm);
  finding.step = root.site.step;
  finding.thread = root.site.thread;
  finding.rank = rank_from_environment();
  if (root.source == OriginRecord::Source::kConstant) fill_location(root.site, session, finding);
  if (root.source != OriginRecord::Source::kOperation) fill_external_kind(cause, session, finding);
  for (const Step& step : cause.steps) finding.lineage.push_back(fill_step(step, session));
  finding.lineage_omitted = cause.omitted;
  const bool is_brought = finding.origin == Origin::kInput && !root.collective.empty();
  finding.hint = is_brought ? hint_for_collective(root.collective) : hint_for(finding);
  return finding;
}

}  // namespace torchnan
