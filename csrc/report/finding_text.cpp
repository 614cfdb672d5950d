// Formats the report of a finding.
#include <torchnan/finding.h>

#include <algorithm>
#include <span>

#include "report/cookbook_section.h"
#include "report/number_text.h"
#include "report/operator_name.h"
#include "report/repetitions.h"
#include "base/format.h"
#include "base/printable.h"

namespace torchnan {
namespace {

constexpr std::string_view kTakenOver = "aten::lift_fresh";  // what torch.tensor() and from_numpy() call
constexpr size_t kFramesShown = 5;
constexpr size_t kBackwardFramesShown = 2;
constexpr size_t kInputsShown = 4;
constexpr size_t kOthersShown = 4;

// How many of a list to show before the note about the rest. The note never stands for a single entry, because the
// entry would fit in its place.
size_t shown_of(size_t count, size_t most) { return count <= most + 1 ? count : most; }

// "float32" -> "f32", "bfloat16" -> "bf16".
std::string short_dtype(const std::string& dtype) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"float8", "f8"}, {"float", "f"}, {"bfloat", "bf"}, {"complex", "c"}, {"uint", "u"}, {"int", "i"},
  };
  for (const auto& [name, brief] : kNames) {
    if (dtype.starts_with(name)) return std::string(brief) + dtype.substr(name.size());
  }
  return dtype;
}

std::string type_of(const std::string& dtype, const std::vector<int64_t>& shape) {
  return format_text("{}[{}]", printable(short_dtype(dtype)), join_text(shape, ","));
}

// The single format of a location, which editors open.
std::string location(const std::string& file, int64_t line) {
  return format_text("{}:{}", printable(short_path(file)), line);
}

// Returns the counts that are not zero.
std::string counts(int64_t nan, int64_t posinf, int64_t neginf) {
  std::string text;
  if (nan > 0) text += format_text("  nan {}", nan);
  if (posinf > 0) text += format_text("  +inf {}", posinf);
  if (neginf > 0) text += format_text("  -inf {}", neginf);
  return text;
}

std::string headline(const Finding& f) {
  std::string text = format_text("torchnan: {}", f.kind == Kind::kNaN ? "NaN" : "Inf");
  if (f.step) text += format_text(" at step {}", *f.step);
  if (f.rank) text += format_text(", rank {}", *f.rank);
  text += format_text(" ({})", printable(f.device));
  if (f.phase == Phase::kBackward) text += ", in the backward pass";
  if (f.phase == Phase::kOptimizer) text += ", in the optimizer";
  if (f.level == Level::kWarning) text += " - a warning: nothing used it";
  return text;
}

bool is_hook(const Finding& f) {
  const auto same_line = [](const Frame& a, const Frame& b) { return a.file == b.file && a.line == b.line; };
  return !f.backward_stack.empty() && f.backward_stack.size() <= f.stack.size() &&
         std::equal(f.backward_stack.begin(), f.backward_stack.end(), f.stack.begin(), same_line);
}

// The frames of the forward call.
std::vector<Frame> forward_frames(const Finding& f) {
  const auto own = static_cast<int64_t>(is_hook(f) ? f.backward_stack.size() : 0);
  return {f.stack.begin() + own, f.stack.end()};
}

std::string location_of(const Finding& f) {
  const std::vector<Frame> forward = forward_frames(f);
  if (f.backward_stack.empty()) {
    return forward.empty() ? "" : format_text("   at {}", location(forward.front().file, forward.front().line));
  }
  std::string text = format_text("   at {}", location(f.backward_stack.front().file, f.backward_stack.front().line));
  if (!forward.empty()) text += format_text(", forward {}", location(forward.front().file, forward.front().line));
  return text;
}

std::string module_of(const Finding& f) {
  const std::string path = f.module->empty() ? "the root module" : printable(*f.module);
  return f.module_type.empty() ? path : format_text("{} ({})", path, printable(f.module_type));
}

// The module is that of the first use.
std::string constant_of(const Finding& f) {
  std::string what = f.op == kTakenOver ? "a constant, given to torch.tensor"
                                        : format_text("a constant, written by {}", printable(f.op));
  what += location_of(f);
  if (f.module) what += format_text(", first used in {}", module_of(f));
  return what;
}

std::string produced_by(const Finding& f) {
  std::string what;
  switch (f.origin) {
    case Origin::kOp:
      what = printable(f.op);
      if (!f.node.empty()) what += format_text(" in {}", printable(f.node));
      what += f.constant ? " with a constant" : format_text(", output {}", f.output);
      break;
    case Origin::kParameter:
      what = f.name.empty() ? "a parameter" : format_text("parameter {}", printable(f.name));
      what += format_text(", first read by {}", printable(f.op));
      break;
    case Origin::kBuffer:
      what = format_text("buffer {}, first read by {}", printable(f.name), printable(f.op));
      break;
    case Origin::kInput:
      if (f.op == "torchnan::guard" || f.op == "autograd::backward") {
        what = "not known";
        break;
      }
      if (f.constant) return constant_of(f);
      what = f.op == kTakenOver ? "an external tensor"
                                : format_text("an external tensor, first used by {}", printable(f.op));
      break;
    case Origin::kUninit:
      what = format_text("memory from {} that nothing has written", printable(f.op));
      break;
    case Origin::kCompiled:
      what = format_text("something inside a compiled region, first seen in {} {}",
                         f.phase == Phase::kBackward ? "gradient" : "output", f.output);
      break;
    case Origin::kForeign:
      what = format_text("something outside PyTorch's dispatcher, first read by {}", printable(f.op));
      break;
  }
  if (f.origin == Origin::kCompiled) return what;  // its location is that of the region
  if (f.origin == Origin::kOp && !f.name.empty()) what += format_text("   for parameter {}", printable(f.name));
  if (f.module) what += format_text("   in {}", module_of(f));
  return what + location_of(f);
}

// Whether the operation made an Inf which a later operation of the same backward node turned into a NaN. The kind is
// that of the node's result, the counts are those of the operation's.
bool is_nan_of_node(const Finding& f) {
  const bool made_only_inf = f.nan == 0 && f.posinf + f.neginf > 0;
  return f.origin == Origin::kOp && !f.constant && !f.node.empty() && f.kind == Kind::kNaN && made_only_inf;
}

std::string format_output(const Finding& f) {
  std::string text = type_of(f.dtype, f.shape) + counts(f.nan, f.posinf, f.neginf);
  if (is_nan_of_node(f)) text += format_text(", then NaN in {}", printable(f.node));
  if (!f.first_index.empty()) text += format_text("  first at [{}]", join_text(f.first_index, ","));
  return text;
}

std::string format_input(const InputSummary& input) {
  std::string text = format_text("{} {}", printable(input.name), type_of(input.dtype, input.shape));
  if (input.overwritten) {
    return text + counts(input.tally.nan, input.tally.posinf, input.tally.neginf) + "  (overwritten by the operation)";
  }
  if (input.tally.min && input.tally.max) {
    text += format_text("  min {}  max {}", format_number(*input.tally.min, input.dtype),
                        format_number(*input.tally.max, input.dtype));
  } else if (input.tally.absmax) {  // for a tensor on a device nothing else is known
    text += format_text("  absmax {}", format_number(*input.tally.absmax, input.dtype));
  }
  text += counts(input.tally.nan, input.tally.posinf, input.tally.neginf);
  if (!input.constant.empty()) text += format_text("  constant from {}", printable(short_path(input.constant)));
  return text;
}

std::string format_compiled(const CompiledRegion& compiled) {
  std::string text = printable(compiled.region);
  if (!compiled.file.empty()) text += format_text(" ({})", location(compiled.file, compiled.line));
  if (!compiled.kernel.empty()) text += format_text(", kernel {}", printable(compiled.kernel));
  switch (compiled.replay) {
    case Replay::kTraced:
      break;
    case Replay::kLowered:
      text += ", as the compiler decomposed it";
      break;
    case Replay::kFused:
      text += ", in fused arithmetic only: finite when run operation by operation";
      break;
    case Replay::kNone:
      text += format_text(", not followed: {}", printable(compiled.obstacle));
      break;
  }
  return text;
}

bool is_number(const InputSummary& input) { return input.dtype == InputSummary::kNumber; }

std::string format_argument(const InputSummary& number) {
  const Tally& tally = number.tally;
  const std::string value = tally.nan > 0      ? "nan"
                            : tally.posinf > 0 ? "inf"
                            : tally.neginf > 0 ? "-inf"
                                               : format_number(tally.min.value_or(0), "float64");
  return format_text("{} {}", printable(number.name), value);
}

// A row for each of the first few tensors. The numbers share one row, which comes first if the hint is about one of
// them.
std::vector<std::string> format_inputs(const Finding& f) {
  std::vector<std::string> rows;
  std::vector<std::string> numbers;
  const auto tensors = static_cast<size_t>(
      std::count_if(f.inputs.begin(), f.inputs.end(), [](const InputSummary& input) { return !is_number(input); }));
  const size_t shown = shown_of(tensors, kInputsShown);
  for (const InputSummary& input : f.inputs) {
    if (is_number(input)) {
      numbers.push_back(format_argument(input));
    } else if (rows.size() < shown) {
      rows.push_back(format_input(input));
    }
  }
  if (tensors > shown) rows.push_back(format_text("... {} more", tensors - shown));
  if (numbers.empty()) return rows;
  const bool is_suspect = is_number(f.inputs.front());
  rows.insert(is_suspect ? rows.begin() : rows.end(), join_text(numbers, "  "));
  return rows;
}

// Merges repeated steps, as of loops and recursions, even of several functions that call each other.
std::string format_lineage(const Finding& f) {
  std::vector<std::string> steps;
  const auto bare = [](const std::string& op) { return printable(without_namespace(op)); };
  steps.push_back(f.origin == Origin::kOp ? bare(f.op) : f.constant ? "constant" : name_of(f.origin));
  for (size_t i = 0; i < f.lineage.size(); ++i) {
    if (i + 1 == f.lineage.size() && f.lineage_omitted > 0) {
      steps.push_back(format_text("... {} more", f.lineage_omitted));
    }
    const LineageStep& step = f.lineage[i];
    steps.push_back(step.file.empty() ? bare(step.op)
                                      : format_text("{} ({})", bare(step.op), location(step.file, step.line)));
  }
  std::vector<std::string> shown;
  for (const Repetition& part : repetitions(steps)) {
    std::string text = join_text(std::span(steps).subspan(part.begin, part.length), " -> ");
    if (part.length > 1) text = format_text("[{}]", text);
    if (part.times > 1) text += format_text(" {} times", part.times);
    shown.push_back(std::move(text));
  }
  return join_text(shown, " -> ");
}

// In which step the harm was done, if it was another than that of the origin.
std::string format_harm_step(const Finding& f) {
  const bool is_at_end = f.harm.kind == HarmKind::kAlive || f.harm.kind == HarmKind::kUnused;
  if (is_at_end || !f.harm.step || !f.step || f.harm.step == f.step) return "";
  return format_text(", at step {}", *f.harm.step);
}

std::string format_others(const Finding& f) {
  const size_t shown = std::min(f.others.size(), kOthersShown);
  std::vector<std::string> names;
  for (size_t i = 0; i < shown; ++i) names.push_back(printable(f.others[i]));
  const int64_t count = static_cast<int64_t>(f.others.size()) + f.others_omitted;
  if (count > static_cast<int64_t>(shown)) names.emplace_back("...");
  return format_text("and {} more: {}", count, join_text(names, ", "));
}

void add_row(std::string& text, const char* label, const std::string& value) {
  text += format_text("\n  {:<9} {}", label, value);
}

std::string as_parameter(const std::string& name) {
  return format_text("{} {}", name.starts_with(kNamelessParameter) ? "a" : "parameter", printable(name));
}

std::string describe_gradient(const Harm& harm) {
  const std::string what = harm.name.empty() ? "a gradient" : format_text("the gradient of {}", printable(harm.name));
  if (harm.applied == true) return format_text("an optimizer used it as {}; the step was applied", what);
  return format_text("an optimizer was about to use it as {}{}", what,
                     harm.applied == false ? "; the step was not applied" : "");
}

// A row of a stack: a frame, and how often it repeats, alone or in turn with its neighbours, as in a recursion.
struct StackRow {
  const Frame* frame;
  size_t times;
};

std::string format_frame(const Frame& f) {
  return format_text("{} {}", location(f.file, f.line), printable(f.function));
}

std::vector<StackRow> stack_rows(const std::vector<Frame>& frames) {
  std::vector<std::string> texts;
  for (const Frame& f : frames) texts.push_back(format_frame(f));
  std::vector<StackRow> rows;
  for (const Repetition& part : repetitions(texts)) {
    for (size_t i = 0; i < part.length; ++i) rows.push_back({&frames[part.begin + i], part.times});
  }
  return rows;
}

std::string format_row(const StackRow& row) {
  std::string text = format_frame(*row.frame);
  if (row.times > 1) text += format_text("  {} times", row.times);
  return text;
}

// The innermost frames, the first frame of user code, and the outermost one. A note stands for those in between.
void add_stack(std::string& text, const char* label, const std::vector<Frame>& frames, size_t shown) {
  const std::vector<StackRow> rows = stack_rows(frames);
  const auto is_own = [](const StackRow& row) { return !row.frame->installed; };
  const auto own = std::find_if(rows.begin(), rows.end(), is_own);
  const auto outermost = std::find_if(rows.rbegin(), rows.rend(), is_own);
  const size_t end = outermost == rows.rend() ? rows.size() : static_cast<size_t>(rows.rend() - outermost);
  const size_t innermost = own == rows.end() ? 0 : static_cast<size_t>(own - rows.begin());
  std::vector<size_t> wanted;
  for (size_t i = 0; i < std::min(rows.size(), innermost < shown ? shown : shown - 1); ++i) wanted.push_back(i);
  if (innermost >= shown) wanted.push_back(innermost);
  if (end > 0 && end - 1 > wanted.back()) wanted.push_back(end - 1);
  size_t next = 0;
  for (const size_t i : wanted) {
    if (i == next + 1) add_row(text, "", format_row(rows[next]));
    if (i > next + 1) add_row(text, "", format_text("... {} more", i - next));
    add_row(text, i == 0 ? label : "", format_row(rows[i]));
    next = i + 1;
  }
}

}  // namespace

std::string describe(const Harm& harm) {
  const auto named = [&](const char* what) {
    return harm.name.empty() ? std::string(what) : format_text("{} {}", what, printable(harm.name));
  };
  std::string text;
  switch (harm.kind) {
    case HarmKind::kNone:
      return "none";
    case HarmKind::kOrigin:
      text = "reported where it was made";
      break;
    case HarmKind::kBackward:
      text = "backward() was called on it";
      break;
    case HarmKind::kGradient:
      text = describe_gradient(harm);
      break;
    case HarmKind::kParameter:
      text = harm.name.empty() ? "it is in a parameter" : format_text("it is in {}", as_parameter(harm.name));
      break;
    case HarmKind::kOptimizerState:
      text = format_text("it is in {}", named("optimizer state"));
      break;
    case HarmKind::kRead:
      text = "user code read it";
      break;
    case HarmKind::kGuard:
      text = format_text("it reached {}", named("guard"));
      break;
    case HarmKind::kAlive:
      return "it was still referenced when detection ended";
    case HarmKind::kUnused:
      return "nothing ever used it";
  }
  if (!harm.file.empty()) text += format_text(" ({})", location(harm.file, harm.line));
  return text;
}

std::string to_text(const Finding& f) {
  std::string text = headline(f);
  add_row(text, "made by", produced_by(f));
  add_row(text, f.origin == Origin::kOp && f.constant ? "constant" : "output", format_output(f));
  const std::vector<std::string> inputs = format_inputs(f);
  for (size_t i = 0; i < inputs.size(); ++i) add_row(text, i == 0 ? "inputs" : "", inputs[i]);
  if (!f.hint.empty()) add_row(text, "because", printable(f.hint));
  if (!f.item.empty()) add_row(text, "data", format_text("item {} of the dataset", printable(f.item)));
  if (!f.process.empty()) add_row(text, "process", printable(f.process));
  if (f.compiled) add_row(text, "compiled", format_compiled(*f.compiled));
  if (!f.lineage.empty()) add_row(text, "lineage", format_lineage(f));
  add_row(text, "harm", describe(f.harm) + format_harm_step(f));
  if (!f.others.empty()) add_row(text, "others", format_others(f));
  add_stack(text, "backward", f.backward_stack, kBackwardFramesShown);
  add_stack(text, f.phase == Phase::kBackward && !f.node.empty() ? "forward" : "stack", forward_frames(f),
            kFramesShown);
  if (f.repeats > 0) add_row(text, "repeats", format_text("{} more time{}", f.repeats, f.repeats == 1 ? "" : "s"));
  if (const auto section = cookbook_section(f); !section.empty()) {
    add_row(text, "see", format_text("docs/why_nan.md, {}", section));
  }
  return text;
}

}  // namespace torchnan
