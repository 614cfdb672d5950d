#include "origin/make_finding.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "check/operators/op_plan.h"
#include "origin/runtime_queries.h"
#include "origin/reported_causes.h"
#include "origin/replayed_region.h"
#include "report/hint.h"
#include "report/own_frame.h"
#include "report/operator_name.h"
#include "report/truncate.h"
#include "base/format.h"
#include "base/printable.h"

namespace torchnan {
namespace {

std::string location_of(const Frame& frame) {
  return format_text("{}:{}", printable(short_path(frame.file)), frame.line);
}

// Returns the location between two texts; empty if it is unknown.
std::string located(std::string_view before, const Frame& frame, std::string_view after = "") {
  return frame.file.empty() ? "" : format_text("{}{}{}", before, location_of(frame), after);
}

LineageStep fill_step(const Step& step, const DetectionSession& session) {
  const Frame frame = frame_of(step.site, session);
  return {step.plan->name, frame.file, frame.line};
}

void fill_entry(const Entry& entry, Finding& finding) {
  finding.op = entry.facts.op;
  finding.overload = entry.facts.overload;
  finding.output = 0;
  finding.inputs.clear();  // those of the operation that wrote the value
  finding.stack = entry.facts.stack;
  finding.backward_stack = entry.facts.backward_stack;
  finding.module = entry.facts.module;
  finding.module_type = entry.facts.module_type;
  finding.phase = entry.facts.phase;
  finding.node = entry.facts.node;
  finding.step = entry.facts.step;
}

// A NaN that the program wrote: the operation and its line are those of the write; module, phase and step are those of
// the first use, as for all values that no operation made. Storing it among other values, as in a replay buffer, is a
// use.
void fill_constant(const OriginRecord& origin, const Entry* entry, Finding& finding) {
  finding.origin = Origin::kInput;
  finding.constant = true;
  finding.node.clear();
  if (entry == nullptr) return;
  finding.module = entry->facts.module;
  finding.module_type = entry->facts.module_type;
  finding.phase = entry->facts.phase;
  if (!origin.written_in_place) finding.step = entry->facts.step;
}

// A mask does no harm by itself; the operation that computed with it does.
void fill_computation(const Cause& cause, const DetectionSession& session, Finding& finding) {
  if (!cause.first_computation) return;
  finding.op = cause.first_computation->plan->name;
  finding.overload = cause.first_computation->plan->overload;
  finding.constant = true;  // the tensor is that of the constant
  finding.inputs.clear();   // those of the operation that wrote it
  const Frame constant = frame_of(cause.origin->site.live, session);
  if (!constant.file.empty()) {
    finding.hint = "it computed with the infinities of a constant from " + location_of(constant);
  }
  Site site = cause.origin->site;
  site.live = cause.first_computation->site;
  fill_location(site, session, finding);
}

// The report names the operation that computed with a constant as the origin, so the lineage begins after it.
void begin_lineage_after_computation(const Cause& cause, Finding& finding) {
  const auto is_computation = [&](const Step& step) {
    return step.plan == cause.first_computation->plan && step.site == cause.first_computation->site;
  };
  const auto found = std::find_if(cause.steps.begin(), cause.steps.end(), is_computation);
  if (found == cause.steps.end()) return;
  finding.lineage.erase(finding.lineage.begin(), finding.lineage.begin() + (found + 1 - cause.steps.begin()));
  if (finding.lineage.empty()) finding.lineage_omitted = 0;
}

// Finds the owner of the memory of a value that no operation made.
void fill_external_kind(const Cause& cause, const DetectionSession& session, Finding& finding) {
  const OriginRecord& origin = *cause.origin;
  if (origin.border) {
    finding.origin = Origin::kCompiled;
    return;
  }
  const Entry* entry = origin.entry();
  const bool is_written_nan = has_own_line(origin);
  if (entry != nullptr && (entry->owner || !is_written_nan)) fill_entry(*entry, finding);
  if (entry != nullptr && entry->owner) {
    finding.origin = entry->owner->is_buffer ? Origin::kBuffer : Origin::kParameter;
    finding.name = entry->owner->name;
  } else if (origin.parameter) {
    finding.origin = Origin::kParameter;
    if (origin.owner) finding.name = origin.owner->name;
  } else if (origin.unwritten) {
    finding.origin = Origin::kUninit;
    finding.op = origin.allocator;  // and the line that allocated it; the module stays that of the reader
    finding.overload.clear();
    finding.stack = query_site(origin.allocation, session).stack;
  } else if (origin.foreign) {
    finding.origin = Origin::kForeign;
  } else if (is_written_nan) {
    fill_constant(origin, entry, finding);
  } else if (origin.source == OriginRecord::Source::kExternal || origin.kinds.nan()) {
    finding.origin = Origin::kInput;
  } else {
    fill_computation(cause, session, finding);
  }
}

bool is_external(Origin origin) {
  return origin == Origin::kInput || origin == Origin::kParameter || origin == Origin::kBuffer;
}

void fill_region(const Cause& cause, Finding& finding) {
  const OriginRecord& origin = *cause.origin;
  const auto& region = origin.region != nullptr ? origin.region : cause.region_of_computation;
  const bool is_computed = origin.source == OriginRecord::Source::kOperation || origin.border;
  if (region == nullptr || (is_computed && origin.region == nullptr)) return;
  finding.compiled = region->facts;
  finding.compiled->kernel = kernel_of(*region, finding.op, origin.kinds);
}

// Puts the argument that the hint is about first. A hint that says more of the same stays.
void add_hint(Finding& finding) {
  Hint hint = hint_for(finding);
  if (finding.hint.empty()) finding.hint = std::move(hint.text);
  if (!hint.suspect) return;
  const auto suspect = finding.inputs.begin() + static_cast<int64_t>(*hint.suspect);
  std::rotate(finding.inputs.begin(), suspect, suspect + 1);
}

void append_to_hint(Finding& finding, const std::string& clause) {
  if (!finding.hint.empty()) finding.hint += "; ";
  finding.hint += clause;
}

// Names the operation that turned an Inf into a NaN: it may be the one to repair. Of a backward node, the line of its
// forward call. A factor of a node is a NaN as it leaves the node, which the report says.
void add_first_nan(const Cause& cause, const DetectionSession& session, Finding& finding) {
  if (cause.first_nan == nullptr || finding.kind == Kind::kNaN || finding.constant) return;
  const FirstNan& made = *cause.first_nan;
  const std::string node = made.site.node.empty() ? "" : format_text(" in {}", made.site.node);
  append_to_hint(finding, format_text("{}{} made NaN of it{}", without_namespace(made.plan->name), node,
                                      located(" (", frame_of(made.site, session), ")")));
}

// Whether the NaN came from a number or an array of the program, which it may have read before.
bool is_given_by_program(const OriginRecord& origin, const Finding& finding) {
  const bool is_nan_number = std::any_of(finding.inputs.begin(), finding.inputs.end(), [](const InputSummary& input) {
    return input.dtype == InputSummary::kNumber && input.tally.nan > 0;
  });
  const bool is_written = origin.source == OriginRecord::Source::kConstant || origin.taken_over;
  return is_nan_number || (is_written && origin.kinds.nan());
}

// A NaN may leave in a number, a list or an array, and come back. Nothing proves that it is the same one.
void add_earlier_read(const OriginRecord& origin, const DetectionSession& session, Finding& finding) {
  if (!is_given_by_program(origin, finding)) return;
  const auto read = read_before(session, origin);
  if (!read) return;
  const Finding& made = read->origin->facts;
  append_to_hint(finding, format_text("user code had read a NaN{}, which {} had made{}",
                                      located(" at ", frame_of(read->site, session)), made.op,
                                      located(" at ", innermost(made.stack))));
}

// A parameter or buffer whose memory was never written: to_empty(), and a checkpoint without it.
void add_allocation(const OriginRecord& origin, const DetectionSession& session, Finding& finding) {
  if (!origin.unwritten || finding.origin == Origin::kUninit) return;
  append_to_hint(finding, format_text("nothing has written to this memory since {} allocated it{}",
                                      without_namespace(origin.allocator),
                                      located(" (", frame_of(origin.allocation.live, session), ")")));
}

// A value that the program wrote into a weight, or took over from elsewhere, is reported with its first reader.
void add_line_of_writing(const OriginRecord& origin, const DetectionSession& session, Finding& finding) {
  const bool is_constant = origin.source == OriginRecord::Source::kConstant;
  if (finding.origin == Origin::kOp || finding.constant || origin.received) return;
  const SiteId writing = is_constant ? origin.site.live : origin.written;
  const Frame written = writing == 0 ? Frame{} : frame_of(writing, session);
  const bool is_shown = !finding.stack.empty() && finding.stack.front().file == written.file &&
                        finding.stack.front().line == written.line;
  if (written.file.empty() || is_shown) return;
  const char* what = origin.taken_over ? "it came in at " : "it is a constant from ";
  append_to_hint(finding, what + location_of(written));
}

// Returns the node of a user's Function, whose `backward` a compiler has merged with other nodes into one.
std::string node_of_function(const std::string& method) {
  constexpr std::string_view kMethod = ".backward";
  if (!method.ends_with(kMethod)) return std::string(kCompiledNode);
  const std::string name = method.substr(0, method.size() - kMethod.size());
  return name.substr(name.rfind('.') + 1) + "Backward";
}

}  // namespace

bool has_own_line(const OriginRecord& origin) {
  return origin.source == OriginRecord::Source::kConstant && origin.kinds.nan() && !origin.taken_over;
}

Frame frame_of(SiteId id, const DetectionSession& session) {
  Site site;
  site.live = id;
  return frame_of(site, session);
}

Frame frame_of(const Site& site, const DetectionSession& session) { return innermost(query_site(site, session).stack); }

void fill_location(const Site& site, const DetectionSession& session, Finding& finding) {
  ResolvedSite resolved = query_site(site, session);
  finding.stack = std::move(resolved.stack);
  finding.backward_stack = std::move(resolved.backward_stack);
  finding.module = std::move(resolved.module);
  finding.module_type = std::move(resolved.module_type);
  finding.phase = resolved.phase;
  finding.node = site.node;
  if (site.node == kCompiledNode && !finding.backward_stack.empty()) {
    finding.node = node_of_function(finding.backward_stack.back().function);
  }
}

Finding make_finding(const Cause& cause, Level level, Harm harm, const DetectionSession& session) {
  const OriginRecord& origin = *cause.origin;
  Finding finding = origin.facts;
  finding.level = level;
  finding.harm = std::move(harm);
  finding.step = origin.site.step;
  finding.thread = origin.site.thread;
  finding.rank = query_rank(session);
  if (origin.received) {
    if (const Entry* entry = origin.entry()) fill_entry(*entry, finding);
    if (finding.op.empty()) finding.op = "torch::multiprocessing";  // it did harm before any operation
  } else {
    if (origin.source == OriginRecord::Source::kConstant || origin.taken_over) {
      fill_location(origin.site, session, finding);
    }
    if (origin.source != OriginRecord::Source::kOperation) fill_external_kind(cause, session, finding);
  }
  fill_region(cause, finding);
  for (const Step& step : cause.steps) finding.lineage.push_back(fill_step(step, session));
  finding.lineage_omitted = cause.omitted;
  const bool is_constant = origin.source == OriginRecord::Source::kConstant;
  if (is_constant && finding.origin == Origin::kOp && cause.first_computation) {
    begin_lineage_after_computation(cause, finding);
  }
  if (is_external(finding.origin)) finding.collective = origin.collective;
  add_hint(finding);
  if (finding.origin == Origin::kOp && !origin.incoming.empty()) append_to_hint(finding, origin.incoming);
  add_allocation(origin, session, finding);
  add_line_of_writing(origin, session, finding);
  add_first_nan(cause, session, finding);
  add_earlier_read(origin, session, finding);
  shorten_lineage(finding, Cause::kKeptSteps);
  return finding;
}

}  // namespace torchnan
