#include "origin/make_finding.h"

#include <cstdlib>

#include "intercept/op_plan.h"
#include "report/hint.h"

namespace torchnan {
namespace {

std::optional<int64_t> rank_of_process() {
  const char* rank = std::getenv("RANK");
  if (rank == nullptr || *rank == '\0') return std::nullopt;
  return std::strtoll(rank, nullptr, 10);
}

Frame frame_of(SiteId id, const Watch& watch) {
  Site site;
  site.live = id;
  const Place place = program().place(site, watch);
  return place.stack.empty() ? Frame{} : place.stack.front();
}

LineageStep tell_step(const Step& step, const Watch& watch) {
  const Frame frame = frame_of(step.site, watch);
  return {step.plan->name, frame.file, frame.line};
}

// An external value: whose memory is it?
void tell_external(const Root& root, const Watch& watch, Finding& finding) {
  std::optional<Owner> owner;
  const auto storage = root.storage.lock();
  if (storage) {
    owner = watch.named_owner(storage.get());
    if (!owner) owner = program().owner(storage.get(), root.site.live, watch);
  }
  if (owner) {
    finding.origin = owner->is_buffer ? Origin::kBuffer : Origin::kParameter;
    finding.name = owner->name;
  } else if (root.parameter) {
    finding.origin = Origin::kParameter;
  } else if (root.unwritten) {
    finding.origin = Origin::kUninit;
    finding.op = root.allocator;
    finding.overload.clear();
    tell_place(root.allocation, watch, finding);
  } else {
    finding.origin = root.foreign ? Origin::kForeign : Origin::kInput;
  }
}

// A constant does no harm by itself: the operation that computed with it does. A tensor full of numbers that holds
// one is data.
void tell_constant(const Record& record, const Watch& watch, Finding& finding) {
  const Step* computation = record.first_computation();
  if (computation == nullptr) return;
  Site site = record.root()->site;
  site.live = computation->site;
  finding.op = computation->plan->name;
  finding.overload = computation->plan->overload;
  finding.output = 0;
  tell_place(site, watch, finding);
}

}  // namespace

void tell_place(const Site& site, const Watch& watch, Finding& finding) {
  Place place = program().place(site, watch);
  finding.stack = std::move(place.stack);
  finding.module = std::move(place.module);
  finding.phase = place.phase;
  finding.node = site.node;
}

Finding make_finding(const Record& record, Level level, Harm harm, const Watch& watch) {
  const Root& root = *record.root();
  Finding finding = root.facts;
  finding.level = level;
  finding.harm = std::move(harm);
  finding.step = root.site.step;
  finding.thread = root.site.thread;
  finding.rank = rank_of_process();
  if (root.source == Root::Source::kExternal) tell_external(root, watch, finding);
  if (root.source == Root::Source::kConstant) tell_constant(record, watch, finding);
  for (const Step& step : record.steps()) finding.lineage.push_back(tell_step(step, watch));
  finding.lineage_omitted = record.omitted();
  finding.hint = hint_for(finding);
  return finding;
}

}  // namespace torchnan
