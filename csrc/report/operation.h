// The operation of a finding and the statistics of its arguments, in the form that the hint rules need.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <torchnan/finding.h>

#include "report/hint.h"
#include "report/number_text.h"
#include "report/operator_name.h"
#include "base/strict_floats.h"
#include "base/format.h"

namespace torchnan {

inline int64_t count_elements(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

// One argument of the operation; absent if there is none with that name, or nothing is known about it.
struct Argument {
  const InputSummary* input = nullptr;
  size_t index = 0;

  explicit operator bool() const { return input != nullptr && !input->overwritten; }
  bool is_overwritten() const { return input != nullptr && input->overwritten; }
  const Tally& tally() const { return input->tally; }
  bool has_range() const { return *this && tally().min.has_value(); }
  bool is_finite() const { return *this && tally().nonfinite() == 0; }
  // Known of an overwritten one, too.
  bool holds_infinities() const { return input != nullptr && tally().posinf + tally().neginf > 0; }
  bool holds_zeros() const { return *this && tally().zeros > 0; }
  bool is_number() const { return input->dtype == InputSummary::kNumber || input->shape.empty(); }
  int64_t size() const { return count_elements(input->shape); }
  double min() const { return *tally().min; }
  double max() const { return *tally().max; }
  // The largest |x|; 0 if there are no finite elements.
  double absmax() const { return input == nullptr ? 0 : tally().absmax.value_or(0); }
  std::string quote(double x) const { return format_number(x, input->dtype); }
  // Whether a negative number has the largest magnitude. For complex numbers only the magnitude is known.
  bool is_below() const { return tally().min && -*tally().min == *tally().absmax && *tally().max < *tally().absmax; }
  std::string reach() const { return is_below() ? "down to " + quote(min()) : "up to " + quote(*tally().absmax); }
  std::string zeros() const { return format_text("{} {}", input->name, is_number() ? "is 0" : "holds zeros"); }
};

class Operation {
 public:
  explicit Operation(const Finding& f)
      : finding_(f), name_(bare_operator_name(f.op)), is_foreach_(without_namespace(f.op).starts_with(kForeachPrefix)) {
    for (size_t i = 0; i < f.inputs.size(); ++i) arguments_.push_back({&f.inputs[i], i});
  }

  // Without namespace, underscore of the in-place form and "_foreach_".
  std::string_view name() const { return name_; }
  const Finding& finding() const { return finding_; }
  const std::string& dtype() const { return finding_.dtype; }
  bool is_complex() const { return finding_.dtype.starts_with("complex"); }
  std::string limit() const { return format_number(largest_number(dtype()), dtype()); }
  int64_t infinities() const { return finding_.posinf + finding_.neginf; }

  // The counts of a finding include values that passed through the operation. The operation made a NaN only if the
  // finding is about a NaN, and an Inf beside it only if no argument had one.
  bool made_nan() const { return finding_.kind == Kind::kNaN && finding_.nan > 0; }
  bool made_inf() const {
    if (infinities() == 0) return false;
    const auto is_infinite = [](const Argument& x) { return x.is_overwritten() || x.holds_infinities(); };
    return !made_nan() || std::none_of(arguments_.begin(), arguments_.end(), is_infinite);
  }
  // Whether every argument is known and finite.
  bool is_of_finite() const {
    return std::all_of(arguments_.begin(), arguments_.end(), [](const Argument& x) { return x.is_finite(); });
  }

  // Returns the argument with this name in the schema; for a list, the element that the result was computed from.
  Argument argument(std::string_view name) const {
    const std::string element = format_text("{}[{}]", name, finding_.output);
    for (const Argument& one : arguments_) {
      if (one.input->name == name || (is_foreach_ && one.input->name == element)) return one;
    }
    return {};
  }
  // The value of a number; `otherwise` if it was not given.
  double number(std::string_view name, double otherwise) const {
    const Argument given = argument(name);
    return given.has_range() ? given.min() : otherwise;
  }
  // The first tensor.
  Argument self() const { return arguments_.empty() ? Argument{} : arguments_[0]; }
  const std::vector<Argument>& arguments() const { return arguments_; }

 private:
  const Finding& finding_;
  std::string_view name_;
  bool is_foreach_;
  std::vector<Argument> arguments_;
};

inline Hint about(const Argument& suspect, std::string text) { return {std::move(text), suspect.index}; }

}  // namespace torchnan
