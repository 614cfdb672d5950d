#include "report/hints/families.h"

#include <cmath>
#include <string>

#include "base/format.h"
#include "report/hint_rules.h"

namespace torchnan {
namespace {

Hint hint_for_negative_base(const Argument& base, const Argument& exponent) {
  const bool is_one = exponent.has_range() && exponent.min() == exponent.max();
  const std::string power = is_one ? exponent.quote(exponent.min()) : "a non-integer power";
  if (base.is_overwritten()) {
    return about(
        base, format_text("{} held negative values: a negative base to the power {} is NaN", base.input->name, power));
  }
  if (!base.has_range() || base.min() >= 0) return {};
  return about(base, format_text("{} holds negative values (down to {}): a negative base to the power {} is NaN",
                                 base.input->name, base.quote(base.min()), power));
}

Hint hint_for_overwritten_base(const Operation& op, const Argument& base, const Argument& exponent) {
  if (exponent.min() != exponent.max()) return {};
  const std::string what = exponent.min() < 0 ? "zeros, or values too small" : "values too large";
  return about(base, format_text("{} held {}: their power {} is beyond {}, the largest that {} can hold",
                                 base.input->name, what, exponent.quote(exponent.min()), op.limit(), op.dtype()));
}

// Some of the powers are negative.
Hint hint_for_zero_to_negative_powers(const Operation& op, const Argument& base, const Argument& exponent,
                                      bool others_may_overflow) {
  const std::string zeros =
      format_text("{}: 0 to a negative power (down to {}) is inf", base.zeros(), exponent.quote(exponent.min()));
  if (!others_may_overflow) return about(base, zeros);
  return about(base,
               format_text("{}, or a power is beyond {}, the largest that {} can hold", zeros, op.limit(), op.dtype()));
}

Hint hint_for_power(const Operation& op) {
  const Argument base = op.argument("self");
  const Argument exponent = op.argument("exponent");
  if (base.input == nullptr || exponent.input == nullptr || op.is_complex()) return {};
  if (op.made_nan()) return hint_for_negative_base(base, exponent);
  if (!op.made_inf() || !exponent.has_range()) return {};
  if (base.is_overwritten()) return hint_for_overwritten_base(op, base, exponent);
  if (base.holds_zeros() && exponent.max() < 0) {
    return about(base, format_text("{}: 0 to the power {} is inf", base.zeros(), exponent.quote(exponent.min())));
  }
  if (!base.has_range()) return {};
  const double limit = largest_number(op.dtype());
  const double small = base.tally().min_abs.value_or(1);
  const bool large_overflows = exponent.max() > 0 && std::pow(base.absmax(), exponent.max()) > limit;
  const bool small_overflows = exponent.min() < 0 && std::pow(small, exponent.min()) > limit;
  if (base.holds_zeros() && exponent.min() < 0) {
    return hint_for_zero_to_negative_powers(op, base, exponent, large_overflows || small_overflows);
  }
  if (large_overflows) {
    return about(base, format_text("{} to the power {} is more than {} can hold{}", base.quote(base.absmax()),
                                   exponent.quote(exponent.max()), op.dtype(), describe_growth(op)));
  }
  if (!small_overflows) return {};
  return about(base, format_text("{} to the power {} is more than {} can hold", base.quote(small),
                                 exponent.quote(exponent.min()), op.dtype()));
}

}  // namespace

Hint hint_of_powers(const Operation& op) {
  static constexpr OperatorRule kRules[] = {
      {"pow", hint_for_power},
  };
  return hint_by_operator(kRules, op);
}

}  // namespace torchnan
