#include "origin/make_finding.h"

#include "host/environment.h"
#include "intercept/op_plan.h"
#include "origin/ask.h"
#include "report/hint.h"

namespace torchnan {
namespace {

LineageStep tell_step(const Step& step, const Watch& watch) {
  const Frame frame = frame_of(step.site, watch);
  return {step.plan->name, frame.file, frame.line};
}

void tell_entry(const Entry& entry, Finding& finding) {
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
void tell_computation(const Cause& cause, const Watch& watch, Finding& finding) {
  if (!cause.first_computation) return;
  finding.op = cause.first_computation->plan->name;
  finding.overload = cause.first_computation->plan->overload;
  Site site = cause.root->site;
  site.live = cause.first_computation->site;
  tell_place(site, watch, finding);
}

// A value that no operation made: whose memory is it?
void tell_what_it_is(const Cause& cause, const Watch& watch, Finding& finding) {
  const Root& root = *cause.root;
  const Entry* entry = root.entry();
  if (entry != nullptr) tell_entry(*entry, finding);
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
    finding.stack = ask_place(root.allocation, watch).stack;
  } else if (root.foreign) {
    finding.origin = Origin::kForeign;
  } else if (root.source == Root::Source::kExternal || (root.kinds.nan() && !root.scalar)) {
    finding.origin = Origin::kInput;
  } else {
    tell_computation(cause, watch, finding);
  }
}

}  // namespace

Frame frame_of(SiteId id, const Watch& watch) {
  Site site;
  site.live = id;
  const Place place = ask_place(site, watch);
  return place.stack.empty() ? Frame{} : place.stack.front();
}

void tell_place(const Site& site, const Watch& watch, Finding& finding) {
  Place place = ask_place(site, watch);
  finding.stack = std::move(place.stack);
  finding.module = std::move(place.module);
  finding.phase = place.phase;
  finding.node = site.node;
}

Finding make_finding(const Cause& cause, Level level, Harm harm, const Watch& watch) {
  const Root& root = *cause.root;
  Finding finding = root.facts;
  finding.level = level;
  finding.harm = std::move(harm);
  finding.step = root.site.step;
  finding.thread = root.site.thread;
  finding.rank = rank_of_process();
  if (root.source == Root::Source::kConstant) tell_place(root.site, watch, finding);
  if (root.source != Root::Source::kOperation) tell_what_it_is(cause, watch, finding);
  for (const Step& step : cause.steps) finding.lineage.push_back(tell_step(step, watch));
  finding.lineage_omitted = cause.omitted;
  const bool is_brought = finding.origin == Origin::kInput && !root.collective.empty();
  finding.hint = is_brought ? hint_for_brought(root.collective) : hint_for(finding);
  return finding;
}

}  // namespace torchnan
