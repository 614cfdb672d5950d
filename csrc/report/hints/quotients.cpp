#include "report/hints/families.h"

#include "base/format.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace torchnan {
namespace {

std::string times(int64_t count) { return count == 1 ? "once" : format_text("{} times", count); }
std::string places(int64_t count) { return count == 1 ? "one place" : format_text("{} places", count); }

// The number of results that a zero in `divisor` affects: broadcasting uses each of its elements equally often.
int64_t results_of_zeros(const Operation& op, const Argument& divisor) {
  const int64_t size = std::max<int64_t>(divisor.size(), 1);
  return divisor.tally().zeros * (count_elements(op.finding().shape) / size);
}

Hint hint_for_zero_divisor(const Operation& op, const Argument& dividend, const Argument& divisor,
                           std::string_view what) {
  const std::string name = dividend.input != nullptr ? dividend.input->name : "the dividend";
  const bool is_plain = dividend.is_finite() && divisor.is_finite();
  if (!op.made_nan()) {
    const std::string count = is_plain ? ", " + times(results_of_zeros(op, divisor)) : "";
    return about(divisor, format_text("{}: {} is inf{}", divisor.zeros(), what, count));
  }
  if (op.made_inf()) {
    return about(divisor, format_text("{}: {} is inf, and NaN where {} is 0 too", divisor.zeros(), what, name));
  }
  const std::string other = what == "x/0" ? "the dividend" : name;
  if (!is_plain) return about(divisor, format_text("{}: 0/0 is NaN where {} is 0 too", divisor.zeros(), other));
  if (count_elements(op.finding().shape) == 1)
    return about(divisor, format_text("{} is 0, and so is {}: 0/0 is NaN", divisor.input->name, other));
  return about(divisor,
               format_text("{}; in {} {} is 0 too: 0/0 is NaN", divisor.zeros(), places(op.finding().nan), other));
}

// For finite numbers.
Hint hint_for_large_quotient(const Operation& op, const Argument& dividend, const Argument& divisor) {
  const std::optional<double>& small = divisor.tally().min_abs;
  if (!small || dividend.absmax() / *small < largest_number(op.dtype())) return {};
  return about(divisor, format_text("{} {} divided by {} as small as {} is beyond {}, the largest that {} can hold",
                                    dividend.input->name, dividend.reach(), divisor.input->name, divisor.quote(*small),
                                    op.limit(), op.dtype()));
}

Hint hint_for_quotient(const Operation& op, const Argument& dividend, const Argument& divisor, std::string_view what) {
  if (!divisor) return {};
  const bool may_be_of_infinities = dividend.holds_infinities() && divisor.holds_infinities();
  if (divisor.holds_zeros() && !(op.made_nan() && may_be_of_infinities)) {
    return hint_for_zero_divisor(op, dividend, divisor, what);
  }
  if (op.made_nan()) {
    if (may_be_of_infinities && !divisor.holds_zeros()) {
      return about(divisor,
                   format_text("{} and {} hold infinities: inf/inf is NaN", dividend.input->name, divisor.input->name));
    }
    if (divisor.input->dtype != InputSummary::kNumber || !op.is_of_finite() || op.is_complex()) return {};
    return about(divisor, format_text("{}, {}, is 0 in {}: 0/0 is NaN", divisor.input->name,
                                      divisor.quote(divisor.min()), op.dtype()));
  }
  if (!op.made_inf() || !divisor.tally().min_abs) return {};
  if (!dividend) {
    return about(divisor,
                 format_text("{} is as small as {}: the quotient is beyond {}, the largest that {} can hold",
                             divisor.input->name, divisor.quote(*divisor.tally().min_abs), op.limit(), op.dtype()));
  }
  return hint_for_large_quotient(op, dividend, divisor);
}

Hint hint_for_division(const Operation& op) {
  Argument divisor = op.argument("other");
  if (divisor.input == nullptr) divisor = op.argument("scalar");
  return hint_for_quotient(op, op.argument("self"), divisor, "x/0");
}

// The quotient is multiplied by `value` and added to `self`.
Hint hint_for_addcdiv(const Operation& op) {
  if (op.number("value", 1) == 0 || op.self().holds_infinities()) return {};
  Hint hint = hint_for_quotient(op, op.argument("tensor1"), op.argument("tensor2"), "tensor1 / tensor2");
  const bool is_half_step = op.finding().phase == Phase::kOptimizer && op.dtype() == "float16";
  if (!hint.text.empty() && is_half_step && op.argument("tensor2").holds_zeros()) {
    hint.text += "; an eps of 1e-08, as Adam has, is 0 in float16";
  }
  return hint;
}

Hint hint_for_remainder(const Operation& op) {
  const Argument divisor = op.argument("other");
  const Argument self = op.argument("self");
  if (!op.made_nan()) return {};
  if (divisor.holds_zeros()) {
    const std::string count = op.is_of_finite() ? ", " + times(op.finding().nan) : "";
    return about(divisor, format_text("{}: {} by 0 is NaN{}", divisor.zeros(), op.name(), count));
  }
  if (self.is_finite() && divisor.is_finite()) return hint_for_large_quotient(op, self, divisor);
  if (!self.holds_infinities()) return {};
  return about(self, format_text("{} holds infinities: {} of them is NaN", self.input->name, op.name()));
}

Hint hint_for_reciprocal(const Operation& op) {
  const Argument x = op.self();
  if (x.is_overwritten() && !op.is_complex()) {
    return about(x, format_text("{} held zeros, or values too small: 1/x is beyond {}, the largest that {} can hold",
                                x.input->name, op.limit(), op.dtype()));
  }
  if (x.holds_zeros()) return about(x, format_text("{}: 1/0 is {}", x.zeros(), op.made_nan() ? "NaN" : "inf"));
  if (!x || op.is_complex() || !x.tally().min_abs) return {};
  return about(x, format_text("1/{} is more than {} can hold", x.quote(*x.tally().min_abs), op.dtype()));
}

}  // namespace

Hint hint_of_quotients(const Operation& op) {
  static constexpr OperatorRule kRules[] = {
      {"div", hint_for_division},          {"true_divide", hint_for_division},  {"divide", hint_for_division},
      {"floor_divide", hint_for_division}, {"addcdiv", hint_for_addcdiv},       {"fmod", hint_for_remainder},
      {"remainder", hint_for_remainder},   {"reciprocal", hint_for_reciprocal},
  };
  return hint_by_operator(kRules, op);
}

}  // namespace torchnan
