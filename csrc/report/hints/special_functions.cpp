#include "report/hints/families.h"

#include "base/format.h"

#include <cmath>
#include <string>

namespace torchnan {
namespace {

Hint is_more_than_fits(const Operation& op, const Argument& x, double at) {
  return about(x, format_text("{} of {} is more than {} can hold", op.name(), x.quote(at), op.dtype()));
}

Hint hint_for_lgamma(const Operation& op) {
  const Argument x = op.self();
  if (!op.made_inf() || !x.has_range()) return {};
  if (x.max() > 0 && std::lgamma(x.max()) > largest_number(op.dtype())) return is_more_than_fits(op, x, x.max());
  if (x.min() > 0) return {};
  return about(x, format_text("{} holds zeros or negative integers, the poles of lgamma", x.input->name));
}

// The same for its derivatives: near 0 each is larger than 1 / x. It is not known which derivative was computed.
Hint hint_for_digamma(const Operation& op) {
  const Argument x = op.name() == "polygamma" ? op.argument("self") : op.self();
  if (!x.has_range() || !x.is_finite()) return {};
  if (x.holds_zeros()) return about(x, format_text("{}, a pole of {}", x.zeros(), op.name()));
  if (op.made_nan()) {
    if (x.min() > 0 || op.name() != "digamma") return {};
    return about(x, format_text("{} holds negative integers, the poles of digamma", x.input->name));
  }
  const double nearest = x.tally().min_abs.value_or(1);
  return op.made_inf() && 1 / nearest > largest_number(op.dtype()) ? is_more_than_fits(op, x, nearest) : Hint{};
}

Hint hint_for_zeta(const Operation& op) {
  const Argument x = op.argument("self");
  const Argument q = op.argument("other");
  if (!x.has_range() || !q.has_range()) return {};
  if (x.min() <= 1) {
    return about(x,
                 format_text("{} holds values of 1 or less (down to {}): zeta has a pole at 1 and is not defined below",
                             x.input->name, x.quote(x.min())));
  }
  if (q.holds_zeros()) return about(q, format_text("{}, a pole of zeta", q.zeros()));
  if (!op.made_nan() || q.min() > 0 || !op.is_of_finite()) return {};
  return about(q, format_text("{} holds negative values (down to {}): zeta is not defined there", q.input->name,
                              q.quote(q.min())));
}

Hint hint_for_entropy(const Operation& op) {
  const Argument x = op.self();
  if (!op.made_inf() || !x.has_range()) return {};
  if (x.min() < 0) {
    return about(x, format_text("{} holds negative values (down to {}): the entropy of them is -inf", x.input->name,
                                x.quote(x.min())));
  }
  return about(x, format_text("-x log x of {} is more than {} can hold", x.quote(x.max()), op.dtype()));
}

Hint hint_for_gamma_integral(const Operation& op) {
  if (!op.made_nan() || !op.is_of_finite()) return {};
  for (const char* name : {"self", "other"}) {
    const Argument x = op.argument(name);
    if (!x.has_range() || x.min() >= 0) continue;
    return about(x, format_text("{} holds negative values (down to {}): {} is not defined there", x.input->name,
                                x.quote(x.min()), op.name()));
  }
  const Argument both = op.argument("other");
  if (!both.holds_zeros()) return {};
  return about(both, format_text("{} where self is 0 too: {} is not defined there", both.zeros(), op.name()));
}

// x log(y) and x log(1 + y)
Hint hint_for_weighted_logarithm(const Operation& op, double pole) {
  const Argument x = op.argument("self");
  const Argument y = op.argument("other");
  if (!y.has_range() || !op.is_of_finite()) return {};
  const std::string function = pole == 0 ? "log" : "log1p";
  if (op.made_nan()) {
    if (y.min() >= pole) return {};
    return about(y, format_text("{} holds values below {} (down to {}): {} of them is NaN", y.input->name, pole,
                                y.quote(y.min()), function));
  }
  constexpr double kLargestLogarithm = 750;  // of a float64
  const bool is_large = x.absmax() * kLargestLogarithm > largest_number(op.dtype());
  if (y.min() != pole || is_large) return {};
  return about(y,
               format_text("{} holds {}: {}({}) is -inf", y.input->name, pole == 0 ? "zeros" : "-1", function, pole));
}

}  // namespace

Hint hint_of_special_functions(const Operation& op) {
  static constexpr OperatorRule kRules[] = {
      {"lgamma", hint_for_lgamma},
      {"digamma", hint_for_digamma},
      {"polygamma", hint_for_digamma},
      {"special_zeta", hint_for_zeta},
      {"special_entr", hint_for_entropy},
      {"igamma", hint_for_gamma_integral},
      {"igammac", hint_for_gamma_integral},
      {"xlogy", [](const Operation& op) { return hint_for_weighted_logarithm(op, 0); }},
      {"special_xlog1py", [](const Operation& op) { return hint_for_weighted_logarithm(op, -1); }},
  };
  return hint_by_operator(kRules, op);
}

}  // namespace torchnan
