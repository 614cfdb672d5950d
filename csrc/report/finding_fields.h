// The list of all fields of a finding and of its parts. The JSON writer and reader, the conversion to Python, and
// truncation use it. The order is that of the log.
#pragma once

#include <concepts>
#include <string>
#include <type_traits>

#include <torchnan/finding.h>

namespace torchnan {

// A field that is absent (null, None) where the string is empty.
template <typename String>
struct OptionalText {
  String& value;
};
template <typename String>
OptionalText(String&) -> OptionalText<String>;

// An integer that is never negative.
template <typename Integer>
struct Count {
  Integer& value;
};
template <typename Integer>
Count(Integer&) -> Count<Integer>;

template <typename T, typename Part>
concept MaybeConst = std::same_as<std::remove_const_t<T>, Part>;

// for_each_field(part, visit) calls visit(name, field) for each field, where `field` is a reference to the member or
// one of the wrappers above.

template <MaybeConst<Frame> F, typename Visitor>
void for_each_field(F& frame, Visitor&& visit) {
  visit("file", frame.file);
  visit("line", frame.line);
  visit("function", frame.function);
  visit("installed", frame.installed);
}

template <MaybeConst<InputSummary> I, typename Visitor>
void for_each_field(I& input, Visitor&& visit) {
  visit("name", input.name);
  visit("dtype", input.dtype);
  visit("shape", input.shape);
  visit("min", input.tally.min);
  visit("max", input.tally.max);
  visit("absmax", input.tally.absmax);
  visit("nan", Count{input.tally.nan});
  visit("posinf", Count{input.tally.posinf});
  visit("neginf", Count{input.tally.neginf});
  visit("overwritten", input.overwritten);
  visit("constant", OptionalText{input.constant});
}

template <MaybeConst<LineageStep> S, typename Visitor>
void for_each_field(S& step, Visitor&& visit) {
  visit("op", step.op);
  visit("file", OptionalText{step.file});
  visit("line", step.line);
}

template <MaybeConst<CompiledRegion> C, typename Visitor>
void for_each_field(C& compiled, Visitor&& visit) {
  visit("region", compiled.region);
  visit("file", OptionalText{compiled.file});
  visit("line", compiled.line);
  visit("kernel", OptionalText{compiled.kernel});
  visit("replay", compiled.replay);
  visit("obstacle", OptionalText{compiled.obstacle});
}

template <MaybeConst<Harm> H, typename Visitor>
void for_each_field(H& harm, Visitor&& visit) {
  visit("kind", harm.kind);
  visit("name", OptionalText{harm.name});
  visit("file", OptionalText{harm.file});
  visit("line", harm.line);
  visit("applied", harm.applied);
  visit("step", harm.step);
}

template <MaybeConst<Finding> F, typename Visitor>
void for_each_field(F& finding, Visitor&& visit) {
  visit("level", finding.level);
  visit("kind", finding.kind);
  visit("origin", finding.origin);
  visit("phase", finding.phase);
  visit("op", finding.op);
  visit("overload", finding.overload);
  visit("output", Count{finding.output});
  visit("node", OptionalText{finding.node});
  visit("module", finding.module);
  visit("module_type", OptionalText{finding.module_type});
  visit("name", OptionalText{finding.name});
  visit("constant", finding.constant);
  visit("collective", OptionalText{finding.collective});
  visit("stack", finding.stack);
  visit("backward_stack", finding.backward_stack);
  visit("step", finding.step);
  visit("rank", finding.rank);
  visit("thread", finding.thread);
  visit("process", OptionalText{finding.process});
  visit("item", OptionalText{finding.item});
  visit("device", finding.device);
  visit("dtype", finding.dtype);
  visit("shape", finding.shape);
  visit("strides", finding.strides);
  visit("nan", Count{finding.nan});
  visit("posinf", Count{finding.posinf});
  visit("neginf", Count{finding.neginf});
  visit("first_index", finding.first_index);
  visit("inputs", finding.inputs);
  visit("compiled", finding.compiled);
  visit("lineage", finding.lineage);
  visit("lineage_omitted", Count{finding.lineage_omitted});
  visit("harm", finding.harm);
  visit("hint", OptionalText{finding.hint});
  visit("others", finding.others);
  visit("others_omitted", Count{finding.others_omitted});
  visit("repeats", Count{finding.repeats});
}

}  // namespace torchnan
