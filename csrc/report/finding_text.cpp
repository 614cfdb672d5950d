// Formats the report of a finding.
#include <torchnan/finding.h>

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "text/printable.h"

namespace torchnan {
namespace {

constexpr size_t kFramesShown = 5;
constexpr size_t kInputsShown = 4;

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
  return fmt::format("{}[{}]", printable(short_dtype(dtype)), fmt::join(shape, ","));
}

std::string location(const std::string& file, int64_t line) {
  return fmt::format("{}:{}", printable(short_path(file)), line);
}

// Shorter, for several in a row: the name of the file without its folder.
std::string brief_location(const std::string& file, int64_t line) {
  return fmt::format("{}:{}", printable(file.substr(file.rfind('/') + 1)), line);
}

// Returns the counts that are not zero.
std::string counts(int64_t nan, int64_t posinf, int64_t neginf) {
  std::string text;
  if (nan > 0) text += fmt::format("  nan {}", nan);
  if (posinf > 0) text += fmt::format("  +inf {}", posinf);
  if (neginf > 0) text += fmt::format("  -inf {}", neginf);
  return text;
}

std::string headline(const Finding& f) {
  std::string text = fmt::format("torchnan: {}", f.kind == Kind::kNaN ? "NaN" : "Inf");
  if (f.step) text += fmt::format(" at step {}", *f.step);
  if (f.rank) text += fmt::format(", rank {}", *f.rank);
  text += fmt::format(" ({})", printable(f.device));
  if (f.phase == Phase::kBackward) text += ", in the backward pass";
  if (f.phase == Phase::kOptimizer) text += ", in the optimizer";
  if (f.level == Level::kWarning) text += " - a warning: nothing used it";
  return text;
}

std::string produced_by(const Finding& f) {
  std::string what;
  switch (f.origin) {
    case Origin::kOp:
      what = printable(f.op);
      if (!f.node.empty()) what += fmt::format(" in {}", printable(f.node));
      what += fmt::format(", output {}", f.output);
      break;
    case Origin::kParameter:
      what = f.name.empty() ? "a parameter" : fmt::format("parameter {}", printable(f.name));
      what += fmt::format(", first read by {}", printable(f.op));
      break;
    case Origin::kBuffer:
      what = fmt::format("buffer {}, first read by {}", printable(f.name), printable(f.op));
      break;
    case Origin::kInput:
      if (f.op == "torchnan::guard" || f.op == "autograd::backward") {
        what = "not known";
        break;
      }
      what = fmt::format("an external tensor, first used by {}", printable(f.op));
      break;
    case Origin::kUninit:
      what = fmt::format("memory from {} that nothing has written", printable(f.op));
      break;
    case Origin::kForeign:
      what = fmt::format("something outside PyTorch's dispatcher, first read by {}", printable(f.op));
      break;
  }
  if (f.module) what += fmt::format("   in {}", f.module->empty() ? "the root module" : printable(*f.module));
  if (!f.stack.empty()) what += fmt::format("   at {}", location(f.stack.front().file, f.stack.front().line));
  return what;
}

std::string format_output(const Finding& f) {
  std::string text = type_of(f.dtype, f.shape) + counts(f.nan, f.posinf, f.neginf);
  if (!f.first_index.empty()) text += fmt::format("  first at [{}]", fmt::join(f.first_index, ","));
  return text;
}

std::string format_input(const InputSummary& input) {
  std::string text = fmt::format("{} {}", printable(input.name), type_of(input.dtype, input.shape));
  if (input.overwritten) return text + "  (overwritten by the operation)";
  if (input.tally.min && input.tally.max) {
    text += fmt::format("  min {:.6g}  max {:.6g}", *input.tally.min, *input.tally.max);
  } else if (input.tally.absmax) {  // for a tensor on a device nothing else is known
    text += fmt::format("  absmax {:.6g}", *input.tally.absmax);
  }
  text += counts(input.tally.nan, input.tally.posinf, input.tally.neginf);
  if (!input.constant.empty()) text += fmt::format("  constant from {}", printable(short_path(input.constant)));
  return text;
}

std::string format_lineage(const Finding& f) {
  std::vector<std::string> steps;
  const auto bare = [](const std::string& op) {
    const size_t colons = op.find("::");
    return printable(colons == std::string::npos ? op : op.substr(colons + 2));
  };
  steps.push_back(f.origin == Origin::kOp ? bare(f.op) : name_of(f.origin));
  for (size_t i = 0; i < f.lineage.size(); ++i) {
    if (i + 1 == f.lineage.size() && f.lineage_omitted > 0) {
      steps.push_back(fmt::format("... {} more", f.lineage_omitted));
    }
    const LineageStep& step = f.lineage[i];
    steps.push_back(step.file.empty() ? bare(step.op)
                                      : fmt::format("{} ({})", bare(step.op), brief_location(step.file, step.line)));
  }
  return fmt::format("{}", fmt::join(steps, " -> "));
}

void add_row(std::string& text, const char* label, const std::string& value) {
  text += fmt::format("\n  {:<9} {}", label, value);
}

}  // namespace

std::string describe(const Harm& harm) {
  const auto named = [&](const char* what) {
    return harm.name.empty() ? std::string(what) : fmt::format("{} {}", what, printable(harm.name));
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
      text = fmt::format("an optimizer was about to use it as {}; the step was not applied", named("the gradient of"));
      break;
    case HarmKind::kParameter:
      text = fmt::format("it is in {}", named("parameter"));
      break;
    case HarmKind::kOptimizerState:
      text = fmt::format("it is in {}", named("optimizer state"));
      break;
    case HarmKind::kRead:
      text = "user code read it";
      break;
    case HarmKind::kGuard:
      text = fmt::format("it reached {}", named("guard"));
      break;
    case HarmKind::kAlive:
      return "it was still referenced when detection ended";
    case HarmKind::kUnused:
      return "nothing ever used it";
  }
  if (!harm.file.empty()) text += fmt::format(" ({})", brief_location(harm.file, harm.line));
  return text;
}

std::string to_text(const Finding& f) {
  std::string text = headline(f);
  add_row(text, "made by", produced_by(f));
  add_row(text, "output", format_output(f));
  for (size_t i = 0; i < std::min(f.inputs.size(), kInputsShown); ++i) {
    add_row(text, i == 0 ? "inputs" : "", format_input(f.inputs[i]));
  }
  if (f.inputs.size() > kInputsShown) {
    add_row(text, "", fmt::format("... {} more", f.inputs.size() - kInputsShown));
  }
  if (!f.hint.empty()) add_row(text, "because", printable(f.hint));
  if (!f.lineage.empty()) add_row(text, "lineage", format_lineage(f));
  add_row(text, "harm", describe(f.harm));
  for (size_t i = 0; i < std::min(f.stack.size(), kFramesShown); ++i) {
    const Frame& frame = f.stack[i];
    const char* label = i > 0 ? "" : f.phase == Phase::kBackward && !f.node.empty() ? "forward" : "stack";
    add_row(text, label, fmt::format("{} {}", location(frame.file, frame.line), printable(frame.function)));
  }
  if (f.repeats > 0) add_row(text, "repeats", fmt::format("{} more times", f.repeats));
  return text;
}

}  // namespace torchnan
