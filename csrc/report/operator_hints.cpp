#include "report/operator_hints.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "report/overflow_hints.h"

namespace torchnan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string times(int64_t count) { return count == 1 ? "once" : fmt::format("{} times", count); }

// -- functions of one argument that are defined on an interval

struct Domain {
  std::string_view op;
  double low;  // between these it is finite
  double high;
  std::string_view outside;  // the values that are not
  std::string_view image;    // what becomes NaN of them
  std::string_view pole;     // where it is infinite, and why; empty if nowhere
};

constexpr Domain kDomains[] = {
    {"log", 0, kInfinity, "negative values", "their logarithm", "zeros: log(0) is -inf"},
    {"log2", 0, kInfinity, "negative values", "their logarithm", "zeros: log(0) is -inf"},
    {"log10", 0, kInfinity, "negative values", "their logarithm", "zeros: log(0) is -inf"},
    {"log1p", -1, kInfinity, "values below -1", "log1p of them", "-1: log1p(-1) is -inf"},
    {"sqrt", 0, kInfinity, "negative values", "their square root", ""},
    {"rsqrt", 0, kInfinity, "negative values", "their square root", "zeros: 1/sqrt(0) is inf"},
    {"acos", -1, 1, "values outside [-1, 1]", "acos of them", ""},
    {"asin", -1, 1, "values outside [-1, 1]", "asin of them", ""},
    {"atanh", -1, 1, "values outside [-1, 1]", "atanh of them", "1 or -1: atanh of them is infinite"},
    {"acosh", 1, kInfinity, "values below 1", "acosh of them", ""},
    {"logit", 0, 1, "values outside [0, 1]", "logit of them", "0 or 1: logit of them is infinite"},
    {"erfinv", -1, 1, "values outside [-1, 1]", "erfinv of them", "1 or -1: erfinv of them is infinite"},
    {"special_ndtri", 0, 1, "values outside [0, 1]", "ndtri of them", "0 or 1: ndtri of them is infinite"},
    {"special_bessel_y0", 0, kInfinity, "negative values", "y0 of them", "zeros: y0(0) is -inf"},
    {"special_bessel_y1", 0, kInfinity, "negative values", "y1 of them", "zeros: y1(0) is -inf"},
    {"special_modified_bessel_k0", 0, kInfinity, "negative values", "k0 of them", "zeros: k0(0) is inf"},
    {"special_modified_bessel_k1", 0, kInfinity, "negative values", "k1 of them", "zeros: k1(0) is inf"},
    {"special_scaled_modified_bessel_k0", 0, kInfinity, "negative values", "k0 of them", "zeros: k0(0) is inf"},
    {"special_scaled_modified_bessel_k1", 0, kInfinity, "negative values", "k1 of them", "zeros: k1(0) is inf"},
};

std::string range_outside(const Argument& x, const Domain& domain) {
  const double min = *x.tally().min;
  const double max = *x.tally().max;
  if (min < domain.low && max > domain.high) return fmt::format(" (from {} to {})", x.quote(min), x.quote(max));
  if (min < domain.low) return fmt::format(" (down to {})", x.quote(min));
  return fmt::format(" (up to {})", x.quote(max));
}

Hint hint_for_domain(const Operation& op, const Domain& domain) {
  const Argument x = op.self();
  const bool is_clamped = op.argument("eps").input != nullptr;  // logit
  if (op.is_complex() || is_clamped || x.input == nullptr) return {};
  if (x.is_overwritten()) {  // of finite values nothing else does that
    if (op.made_nan())
      return about(x, fmt::format("{} held {}: {} is NaN", x.input->name, domain.outside, domain.image));
    return domain.pole.empty() ? Hint{} : about(x, fmt::format("{} held {}", x.input->name, domain.pole));
  }
  if (!x.has_range()) return {};
  if (op.made_nan()) {
    if (x.min() >= domain.low && x.max() <= domain.high) return {};
    return about(x, fmt::format("{} holds {}{}: {} is NaN", x.input->name, domain.outside, range_outside(x, domain),
                                domain.image));
  }
  if (domain.pole.empty() || (x.min() != domain.low && x.max() != domain.high)) return {};
  return about(x, fmt::format("{} holds {}", x.input->name, domain.pole));
}

// -- poles of the gamma function

Hint is_more_than_fits(const Operation& op, const Argument& x, double at) {
  return about(x, fmt::format("{} of {} is more than {} can hold", op.name(), x.quote(at), op.dtype()));
}

Hint hint_for_lgamma(const Operation& op) {
  const Argument x = op.self();
  if (!op.made_inf() || !x.has_range()) return {};
  if (x.max() > 0 && std::lgamma(x.max()) > largest_number(op.dtype())) return is_more_than_fits(op, x, x.max());
  if (x.min() > 0) return {};
  return about(x, fmt::format("{} holds zeros or negative integers, the poles of lgamma", x.input->name));
}

// And of its derivatives: near 0 each is larger than 1 / x. Which one it is, is not known.
Hint hint_for_digamma(const Operation& op) {
  const Argument x = op.name() == "polygamma" ? op.argument("self") : op.self();
  if (!x.has_range() || !x.is_finite()) return {};
  if (x.holds_zeros()) return about(x, fmt::format("{}, a pole of {}", x.zeros(), op.name()));
  if (op.made_nan()) {
    if (x.min() > 0 || op.name() != "digamma") return {};
    return about(x, fmt::format("{} holds negative integers, the poles of digamma", x.input->name));
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
                 fmt::format("{} holds values of 1 or less (down to {}): zeta has a pole at 1 and is not defined below",
                             x.input->name, x.quote(x.min())));
  }
  if (q.holds_zeros()) return about(q, fmt::format("{}, a pole of zeta", q.zeros()));
  if (!op.made_nan() || q.min() > 0 || !op.is_of_finite()) return {};
  return about(q, fmt::format("{} holds negative values (down to {}): zeta is not defined there", q.input->name,
                              q.quote(q.min())));
}

Hint hint_for_entropy(const Operation& op) {
  const Argument x = op.self();
  if (!op.made_inf() || !x.has_range()) return {};
  if (x.min() < 0) {
    return about(x, fmt::format("{} holds negative values (down to {}): the entropy of them is -inf", x.input->name,
                                x.quote(x.min())));
  }
  return about(x, fmt::format("-x log x of {} is more than {} can hold", x.quote(x.max()), op.dtype()));
}

Hint hint_for_gamma_integral(const Operation& op) {
  if (!op.made_nan() || !op.is_of_finite()) return {};
  for (const char* name : {"self", "other"}) {
    const Argument x = op.argument(name);
    if (!x.has_range() || x.min() >= 0) continue;
    return about(x, fmt::format("{} holds negative values (down to {}): {} is not defined there", x.input->name,
                                x.quote(x.min()), op.name()));
  }
  const Argument both = op.argument("other");
  if (!both.holds_zeros()) return {};
  return about(both, fmt::format("{} where self is 0 too: {} is not defined there", both.zeros(), op.name()));
}

// x log(y) and x log(1 + y)
Hint hint_for_weighted_logarithm(const Operation& op, double pole) {
  const Argument x = op.argument("self");
  const Argument y = op.argument("other");
  if (!y.has_range() || !op.is_of_finite()) return {};
  const std::string function = pole == 0 ? "log" : "log1p";
  if (op.made_nan()) {
    if (y.min() >= pole) return {};
    return about(y, fmt::format("{} holds values below {} (down to {}): {} of them is NaN", y.input->name, pole,
                                y.quote(y.min()), function));
  }
  constexpr double kLargestLogarithm = 750;  // of a float64
  const bool is_large = x.absmax() * kLargestLogarithm > largest_number(op.dtype());
  if (y.min() != pole || is_large) return {};
  return about(y,
               fmt::format("{} holds {}: {}({}) is -inf", y.input->name, pole == 0 ? "zeros" : "-1", function, pole));
}

// -- quotients

// How many results are made of a zero in `divisor`: broadcasting uses each of its elements as often.
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
    return about(divisor, fmt::format("{}: {} is inf{}", divisor.zeros(), what, count));
  }
  if (op.made_inf()) {
    return about(divisor, fmt::format("{}: {} is inf, and NaN where {} is zero too", divisor.zeros(), what, name));
  }
  const std::string count = is_plain ? ", " + times(op.finding().nan) : "";
  return about(divisor, fmt::format("{}{} where {} is zero too: 0/0 is NaN", divisor.zeros(), count,
                                    what == "x/0" ? "the dividend" : name));
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
                   fmt::format("{} and {} hold infinities: inf/inf is NaN", dividend.input->name, divisor.input->name));
    }
    if (divisor.input->dtype != InputSummary::kNumber || !op.is_of_finite() || op.is_complex()) return {};
    return about(divisor, fmt::format("{}, {}, is 0 in {}: 0/0 is NaN", divisor.input->name,
                                      divisor.quote(divisor.min()), op.dtype()));
  }
  if (!op.made_inf() || !divisor.tally().min_abs) return {};
  const std::string small = divisor.quote(*divisor.tally().min_abs);
  if (!dividend) {
    return about(divisor, fmt::format("{} is as small as {}: the quotient is beyond {}, the largest that {} can hold",
                                      divisor.input->name, small, op.limit(), op.dtype()));
  }
  if (dividend.absmax() / *divisor.tally().min_abs < largest_number(op.dtype())) return {};
  return about(divisor,
               fmt::format("{} {} divided by {} as small as {} is beyond {}, the largest that {} can hold",
                           dividend.input->name, dividend.reach(), divisor.input->name, small, op.limit(), op.dtype()));
}

Hint hint_for_division(const Operation& op) {
  Argument divisor = op.argument("other");
  if (divisor.input == nullptr) divisor = op.argument("scalar");
  return hint_for_quotient(op, op.argument("self"), divisor, "x/0");
}

// The quotient is multiplied by `value` and added to `self`.
Hint hint_for_addcdiv(const Operation& op) {
  if (op.number("value", 1) == 0 || op.self().holds_infinities()) return {};
  return hint_for_quotient(op, op.argument("tensor1"), op.argument("tensor2"), "tensor1 / tensor2");
}

Hint hint_for_remainder(const Operation& op) {
  const Argument divisor = op.argument("other");
  const Argument self = op.argument("self");
  if (!op.made_nan()) return {};
  if (divisor.holds_zeros()) {
    const std::string count = op.is_of_finite() ? ", " + times(op.finding().nan) : "";
    return about(divisor, fmt::format("{}: {} by 0 is NaN{}", divisor.zeros(), op.name(), count));
  }
  if (!self.holds_infinities()) return {};
  return about(self, fmt::format("{} holds infinities: {} of them is NaN", self.input->name, op.name()));
}

Hint hint_for_reciprocal(const Operation& op) {
  const Argument x = op.self();
  if (x.is_overwritten() && !op.is_complex()) {
    return about(x, fmt::format("{} held zeros, or values too small: 1/x is beyond {}, the largest that {} can hold",
                                x.input->name, op.limit(), op.dtype()));
  }
  if (x.holds_zeros()) return about(x, fmt::format("{}: 1/0 is {}", x.zeros(), op.made_nan() ? "NaN" : "inf"));
  if (!x || op.is_complex() || !x.tally().min_abs) return {};
  return about(x, fmt::format("1/{} is more than {} can hold", x.quote(*x.tally().min_abs), op.dtype()));
}

// -- powers

Hint hint_for_negative_base(const Argument& base, const Argument& exponent) {
  const bool is_one = exponent.has_range() && exponent.min() == exponent.max();
  const std::string power = is_one ? exponent.quote(exponent.min()) : "a power that is no integer";
  if (base.is_overwritten()) {
    return about(
        base, fmt::format("{} held negative values: a negative base to the power {} is NaN", base.input->name, power));
  }
  if (!base.has_range() || base.min() >= 0) return {};
  return about(base, fmt::format("{} holds negative values (down to {}): a negative base to the power {} is NaN",
                                 base.input->name, base.quote(base.min()), power));
}

Hint hint_for_overwritten_base(const Operation& op, const Argument& base, const Argument& exponent) {
  if (exponent.min() != exponent.max()) return {};
  const std::string what = exponent.min() < 0 ? "zeros, or values too small" : "values too large";
  return about(base, fmt::format("{} held {}: their power {} is beyond {}, the largest that {} can hold",
                                 base.input->name, what, exponent.quote(exponent.min()), op.limit(), op.dtype()));
}

Hint hint_for_power(const Operation& op) {
  const Argument base = op.argument("self");
  const Argument exponent = op.argument("exponent");
  if (base.input == nullptr || exponent.input == nullptr || op.is_complex()) return {};
  if (op.made_nan()) return hint_for_negative_base(base, exponent);
  if (!op.made_inf() || !exponent.has_range()) return {};
  if (base.is_overwritten()) return hint_for_overwritten_base(op, base, exponent);
  if (base.holds_zeros() && exponent.max() < 0) {
    return about(base, fmt::format("{}: 0 to the power {} is inf", base.zeros(), exponent.quote(exponent.min())));
  }
  if (!base.has_range() || (base.holds_zeros() && exponent.min() < 0)) return {};
  const double limit = largest_number(op.dtype());
  const double small = base.tally().min_abs.value_or(1);
  if (exponent.max() > 0 && std::pow(base.absmax(), exponent.max()) > limit) {
    return about(base, fmt::format("{} to the power {} is more than {} can hold", base.quote(base.absmax()),
                                   exponent.quote(exponent.max()), op.dtype()));
  }
  if (exponent.min() >= 0 || std::pow(small, exponent.min()) <= limit) return {};
  return about(base, fmt::format("{} to the power {} is more than {} can hold", base.quote(small),
                                 exponent.quote(exponent.min()), op.dtype()));
}

// -- infinities that cancel

// Returns a pair of arguments of which one holds zeros and the other infinities; absent ones if there is none.
std::pair<Argument, Argument> zero_and_infinity(const Operation& op) {
  for (const Argument& zero : op.arguments()) {
    for (const Argument& infinite : op.arguments()) {
      if (zero.index != infinite.index && zero.holds_zeros() && infinite.holds_infinities()) return {zero, infinite};
    }
  }
  return {};
}

Hint hint_for_product(const Operation& op) {
  const auto [zero, infinite] = zero_and_infinity(op);
  if (!op.made_nan() || op.is_complex() || !zero) return {};
  if (zero.holds_infinities() && infinite.holds_zeros()) {
    return about(infinite, fmt::format("{} and {} hold zeros and infinities: 0 * inf is NaN", infinite.input->name,
                                       zero.input->name));
  }
  return about(infinite, fmt::format("{} holds infinities where {} is zero: 0 * inf is NaN", infinite.input->name,
                                     zero.input->name));
}

// Of finite factors it is NaN only where an Inf on the way meets a zero.
Hint hint_for_product_of_elements(const Operation& op) {
  const Argument x = op.self();
  if (!op.made_nan() || op.is_complex() || !x.is_finite() || !x.holds_zeros()) return {};
  return about(x,
               fmt::format("{} holds zeros, and a product on the way is beyond {}, the largest that {} can hold: 0 * "
                           "inf is NaN",
                           x.input->name, op.limit(), op.dtype()));
}

// Of sums of products.
Hint hint_for_matrix_product(const Operation& op) {
  if (!op.made_nan() || op.is_complex()) return {};
  const bool has_zeros = static_cast<bool>(zero_and_infinity(op).first);
  for (const Argument& infinite : op.arguments()) {
    if (!infinite.holds_infinities()) continue;
    return about(infinite, fmt::format("{} holds infinities: {}inf - inf is NaN", infinite.input->name,
                                       has_zeros ? "0 * inf or " : ""));
  }
  return {};
}

// Where a factor is 0, what it multiplies is no summand.
bool has_zero_factor(const Operation& op) {
  return op.argument("alpha").holds_zeros() || op.argument("weight").holds_zeros();
}

Hint hint_for_cancelling(const Operation& op) {
  if (!op.made_nan() || has_zero_factor(op)) return {};
  std::vector<Argument> infinite;
  for (const Argument& x : op.arguments()) {
    if (x.holds_infinities()) infinite.push_back(x);
  }
  if (infinite.size() > 1) {
    return about(infinite[0], fmt::format("{} and {} hold infinities: inf - inf is NaN", infinite[0].input->name,
                                          infinite[1].input->name));
  }
  if (infinite.size() == 1 && infinite[0].tally().posinf > 0 && infinite[0].tally().neginf > 0) {
    return about(infinite[0], fmt::format("{} holds +inf and -inf: inf - inf is NaN", infinite[0].input->name));
  }
  return {};
}

Hint hint_for_trigonometry(const Operation& op) {
  const Argument x = op.self();
  if (!op.made_nan() || !x.holds_infinities()) return {};
  return about(x, fmt::format("{} holds infinities: {} of them is NaN", x.input->name, op.name()));
}

// A softmax of finite numbers and -inf is NaN only where there was nothing but -inf. Its logarithm has -inf elsewhere.
Hint hint_for_softmax(const Operation& op) {
  const Argument x = op.self();
  if (!x || x.tally().nan > 0) return {};
  if (!op.made_nan()) {
    if (!op.made_inf() || !x.is_finite() || !x.has_range()) return {};
    return about(x, fmt::format("{} from {} to {}: their difference is beyond {}, the largest that {} can hold",
                                x.input->name, x.quote(x.min()), x.quote(x.max()), op.limit(), op.dtype()));
  }
  if (x.tally().posinf > 0) return about(x, fmt::format("{} holds +inf: inf - inf is NaN", x.input->name));
  if (x.tally().neginf == 0) return {};
  const std::string row = op.infinities() == 0 ? fmt::format("the row of {} at [{}]", x.input->name,
                                                             fmt::join(op.finding().first_index, ","))
                                               : fmt::format("a row of {}", x.input->name);
  return about(x, fmt::format("{} is -inf everywhere: softmax of a fully masked row is 0/0", row));
}

// Finite queries and keys make a NaN only if their products overflow or a row of the mask leaves nothing.
Hint hint_for_attention(const Operation& op) {
  Argument mask = op.argument("attn_mask");
  if (mask.input == nullptr) mask = op.argument("attn_bias");
  const bool is_float_mask = mask && mask.tally().neginf > 0 && mask.tally().nan == 0 && mask.tally().posinf == 0;
  const bool is_bool_mask = mask && mask.input->dtype == "bool" && mask.tally().zeros > 0;
  const Argument query = op.argument("query");
  const Argument key = op.argument("key");
  if (!op.made_nan() || !query.is_finite() || !key.is_finite() || !op.argument("value").is_finite()) return {};
  if (query.input->shape.empty()) return {};
  const double scale = std::max(1.0, std::abs(op.number("scale", 1)));
  const double product = query.absmax() * key.absmax() * scale * static_cast<double>(query.input->shape.back());
  const bool may_overflow = product >= largest_number(op.dtype());
  const std::string overflow =
      fmt::format("query {} and key {}: their products are beyond {}, the largest that {} can hold", query.reach(),
                  key.reach(), op.limit(), op.dtype());
  if (!is_float_mask && !is_bool_mask) return may_overflow ? about(query, overflow) : Hint{};
  const std::string masked = fmt::format("a row of {} is {} everywhere: softmax of a fully masked row is 0/0",
                                         mask.input->name, is_float_mask ? "-inf" : "False");
  return may_overflow ? about(query, fmt::format("either {}, or {}", overflow, masked)) : about(mask, masked);
}

// -- reductions

Hint hint_for_mean(const Operation& op) {
  const Argument x = op.self();
  if (!op.made_nan() || x.input == nullptr || x.size() > 0) return {};
  const bool is_median = op.name().find("median") != std::string_view::npos;
  return about(x, fmt::format("{} has no elements: {}", x.input->name,
                              is_median ? "their median is NaN" : "a mean over nothing is 0/0"));
}

Hint hint_for_variance(const Operation& op) {
  const Argument x = op.self();
  const int64_t results = count_elements(op.finding().shape);
  if (!x || !x.is_finite() || results == 0) return {};
  const double subtracted = op.number("correction", 1);
  const int64_t count = x.size() / results;
  if (static_cast<double>(count) > subtracted) return {};
  if (count == 1 && subtracted == 1) {
    return about(x, fmt::format("the variance of a single element of {}: the unbiased estimate divides by n - 1 = 0",
                                x.input->name));
  }
  return about(x, fmt::format("the variance of {} elements of {} with correction {:g}: it divides by 0", count,
                              x.input->name, subtracted));
}

// -- losses

Hint hint_for_nll_loss(const Operation& op) {
  const Argument target = op.argument("target");
  const Argument ignored = op.argument("ignore_index");
  const Argument weight = op.argument("weight");
  if (!op.made_nan() || target.input == nullptr) return {};
  if (target.size() == 0) return about(target, "there are no targets: a mean over nothing is 0/0");
  if (!target.has_range() || !ignored.has_range()) return {};
  const double index = *ignored.tally().min;
  if (*target.tally().min == index && *target.tally().max == index) {
    return about(target, fmt::format("all {} targets are ignore_index ({:g}): a mean over nothing is 0/0",
                                     target.size(), index));
  }
  if (!weight.holds_zeros() || weight.min() < 0 || !op.is_of_finite()) return {};
  return about(weight, "the weights of all targets are 0: a mean over nothing is 0/0");
}

Hint hint_for_ctc_loss(const Operation& op) {
  const Argument x = op.argument("log_probs");
  if (!op.made_inf() || !x.is_finite() || x.input->shape.empty()) return {};
  if (x.absmax() * static_cast<double>(x.input->shape[0]) >= largest_number(op.dtype())) return {};
  return about(x,
               "an input is too short for its target, counting a blank between equal neighbours: no alignment exists");
}

// -- normalisation

// Half precision is normalized in float32.
std::string_view computation_dtype(const Operation& op) {
  return op.dtype() == "float16" || op.dtype() == "bfloat16" ? "float32" : std::string_view(op.dtype());
}

// Whether what is normalized may overflow where it is scaled: it is at most the root of the count before that.
bool may_overflow_in_scaling(const Operation& op, const Argument& x) {
  const Argument weight = op.argument("weight");
  const double scale = weight ? weight.absmax() : 1;
  const double largest = scale * std::sqrt(static_cast<double>(x.size())) + op.argument("bias").absmax();
  return largest >= largest_number(op.dtype());
}

Hint hint_for_running_variance(const Operation& op, const Argument& variance) {
  if (!variance.has_range() || !op.made_nan()) return {};
  const double eps = op.number("eps", 0);
  if (variance.min() + eps < 0) {
    return about(variance, fmt::format("running_var holds negative values (down to {}): their square root is NaN",
                                       variance.quote(variance.min())));
  }
  if (eps != 0 || !variance.holds_zeros() || !op.is_of_finite()) return {};
  return about(variance, "running_var holds zeros, and eps is 0: 0/0 is NaN");
}

Hint hint_for_normalization(const Operation& op) {
  const Argument variance = op.argument("running_var");
  if (variance) return hint_for_running_variance(op, variance);  // else it was written: training
  const Argument x = op.self();
  const Argument eps = op.argument("eps");
  if (!x.is_finite() || !x.tally().absmax || may_overflow_in_scaling(op, x)) return {};
  const double limit = largest_number(computation_dtype(op));
  const double squares = x.absmax() * x.absmax() * static_cast<double>(x.size());
  const bool has_no_eps = eps.has_range() && eps.min() == 0;
  if (squares > limit) {
    if (has_no_eps) return {};  // one or the other
    return about(x, fmt::format("{} {}: its variance is beyond {}, the largest that {} can hold", x.input->name,
                                x.reach(), format_number(limit, computation_dtype(op)), computation_dtype(op)));
  }
  if (!has_no_eps) return {};
  return about(eps, fmt::format("eps is 0, and the {} of a row of {} is 0: {}",
                                op.name() == "_fused_rms_norm" ? "mean square" : "variance", x.input->name,
                                op.made_nan() ? "0/0 is NaN" : "x/0 is inf"));
}

// A weight is divided by the norms of its slices.
Hint hint_for_weight_norm(const Operation& op) {
  const Argument v = op.argument("v");
  if (!op.made_nan() || !op.is_of_finite() || !v) return {};
  return about(v, "the norm of a slice of v is 0: 0/0 is NaN");
}

// -- linear algebra

Hint hint_for_inverse(const Operation& op) {
  const Argument x = op.self();
  if (!x.is_finite()) return {};
  return about(x, fmt::format("{} is singular, or so nearly that its inverse is beyond {}", x.input->name, op.dtype()));
}

Hint hint_for_solution(const Operation& op, std::string_view matrix) {
  const Argument a = op.argument(matrix);
  if (!a || !op.is_of_finite()) return {};
  return about(a, fmt::format("{} is singular, or the solution is beyond {}", a.input->name, op.dtype()));
}

Hint hint_for_determinant(const Operation& op) {
  const Argument x = op.self();
  if (op.finding().neginf == 0 || !x.is_finite()) return {};
  return about(x, fmt::format("{} is singular: the logarithm of a determinant of 0 is -inf", x.input->name));
}

// -- optimizers in one kernel

Hint hint_for_fused_step(const Operation& op) {
  const Argument eps = op.argument("eps");
  const bool is_finite = std::none_of(op.arguments().begin(), op.arguments().end(),
                                      [](const Argument& x) { return x.input->tally.nonfinite() > 0; });
  if (!op.made_nan() || !is_finite || !eps.has_range() || eps.min() != 0) return {};
  return about(eps, "eps is 0: where both moments are 0, 0/0 is NaN");
}

// -- numbers

Hint hint_for_number(const Operation& op) {
  for (const Argument& x : op.arguments()) {
    if (x.input->dtype != InputSummary::kNumber || x.tally().nonfinite() == 0) continue;
    const char* value = x.tally().nan > 0 ? "NaN" : x.tally().posinf > 0 ? "inf" : "-inf";
    return about(x, fmt::format("{} is {}", x.input->name, value));
  }
  return {};
}

using Rule = Hint (*)(const Operation&);
struct RuleOf {
  std::string_view op;
  Rule rule;
};

constexpr RuleOf kRules[] = {
    {"lgamma", hint_for_lgamma},
    {"digamma", hint_for_digamma},
    {"polygamma", hint_for_digamma},
    {"special_zeta", hint_for_zeta},
    {"special_entr", hint_for_entropy},
    {"igamma", hint_for_gamma_integral},
    {"igammac", hint_for_gamma_integral},
    {"xlogy", [](const Operation& op) { return hint_for_weighted_logarithm(op, 0); }},
    {"special_xlog1py", [](const Operation& op) { return hint_for_weighted_logarithm(op, -1); }},
    {"div", hint_for_division},
    {"true_divide", hint_for_division},
    {"divide", hint_for_division},
    {"floor_divide", hint_for_division},
    {"addcdiv", hint_for_addcdiv},
    {"fmod", hint_for_remainder},
    {"remainder", hint_for_remainder},
    {"reciprocal", hint_for_reciprocal},
    {"pow", hint_for_power},
    {"mul", hint_for_product},
    {"prod", hint_for_product_of_elements},
    {"cumprod", hint_for_product_of_elements},
    {"mm", hint_for_matrix_product},
    {"bmm", hint_for_matrix_product},
    {"addmm", hint_for_matrix_product},
    {"baddbmm", hint_for_matrix_product},
    {"addcmul", hint_for_matrix_product},
    {"add", hint_for_cancelling},
    {"sub", hint_for_cancelling},
    {"rsub", hint_for_cancelling},
    {"lerp", hint_for_cancelling},
    {"sum", hint_for_cancelling},
    {"cumsum", hint_for_cancelling},
    {"sin", hint_for_trigonometry},
    {"cos", hint_for_trigonometry},
    {"tan", hint_for_trigonometry},
    {"_softmax", hint_for_softmax},
    {"_log_softmax", hint_for_softmax},
    {"softmax", hint_for_softmax},
    {"log_softmax", hint_for_softmax},
    {"_scaled_dot_product_flash_attention_for_cpu", hint_for_attention},
    {"_scaled_dot_product_flash_attention", hint_for_attention},
    {"_scaled_dot_product_efficient_attention", hint_for_attention},
    {"_scaled_dot_product_cudnn_attention", hint_for_attention},
    {"mean", hint_for_mean},
    {"nanmean", hint_for_mean},
    {"median", hint_for_mean},
    {"nanmedian", hint_for_mean},
    {"mse_loss", hint_for_mean},
    {"smooth_l1_loss", hint_for_mean},
    {"huber_loss", hint_for_mean},
    {"soft_margin_loss", hint_for_mean},
    {"multi_margin_loss", hint_for_mean},
    {"multilabel_margin_loss_forward", hint_for_mean},
    {"binary_cross_entropy", hint_for_mean},
    {"binary_cross_entropy_with_logits", hint_for_mean},
    {"var", hint_for_variance},
    {"std", hint_for_variance},
    {"var_mean", hint_for_variance},
    {"std_mean", hint_for_variance},
    {"nll_loss_forward", hint_for_nll_loss},
    {"nll_loss2d_forward", hint_for_nll_loss},
    {"_ctc_loss", hint_for_ctc_loss},
    {"native_layer_norm", hint_for_normalization},
    {"native_group_norm", hint_for_normalization},
    {"native_batch_norm", hint_for_normalization},
    {"_native_batch_norm_legit", hint_for_normalization},
    {"_native_batch_norm_legit_no_training", hint_for_normalization},
    {"_batch_norm_with_update", hint_for_normalization},
    {"_batch_norm_no_update", hint_for_normalization},
    {"cudnn_batch_norm", hint_for_normalization},
    {"_fused_rms_norm", hint_for_normalization},
    {"linalg_inv_ex", hint_for_inverse},
    {"_linalg_solve_ex", [](const Operation& op) { return hint_for_solution(op, "A"); }},
    {"linalg_solve_triangular", [](const Operation& op) { return hint_for_solution(op, "self"); }},
    {"triangular_solve", [](const Operation& op) { return hint_for_solution(op, "A"); }},
    {"linalg_lu_solve", [](const Operation& op) { return hint_for_solution(op, "LU"); }},
    {"lu_solve", [](const Operation& op) { return hint_for_solution(op, "LU_data"); }},
    {"cholesky_inverse", hint_for_inverse},
    {"cholesky_solve", [](const Operation& op) { return hint_for_solution(op, "input2"); }},
    {"_cholesky_solve_helper", [](const Operation& op) { return hint_for_solution(op, "A"); }},
    {"_linalg_slogdet", hint_for_determinant},
    {"_weight_norm_interface", hint_for_weight_norm},
    {"_fused_adam", hint_for_fused_step},
    {"_fused_adamw", hint_for_fused_step},
};

template <typename Entries>
auto find_entry(const Entries& entries, std::string_view op) {
  return std::find_if(std::begin(entries), std::end(entries), [&](const auto& entry) { return entry.op == op; });
}

}  // namespace

Hint hint_for_operator(const Operation& op) {
  Hint hint;
  if (const auto domain = find_entry(kDomains, op.name()); domain != std::end(kDomains)) {
    hint = hint_for_domain(op, *domain);
  } else if (const auto rule = find_entry(kRules, op.name()); rule != std::end(kRules)) {
    hint = rule->rule(op);
  }
  if (hint.text.empty()) hint = hint_for_number(op);
  return hint.text.empty() ? hint_for_overflow(op) : hint;
}

}  // namespace torchnan
