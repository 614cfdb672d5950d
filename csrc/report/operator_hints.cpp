#include "report/operator_hints.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "report/number_text.h"
#include "report/operator_name.h"
#include "scan/strict_floats.h"

namespace torchnan {
namespace {

using namespace std::string_view_literals;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

int64_t count_elements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::string times(int64_t count) { return count == 1 ? "once" : fmt::format("{} times", count); }

// One argument of the operation; absent if it has none of that name, or nothing is known of it.
struct Argument {
  const InputSummary* input = nullptr;
  size_t index = 0;

  explicit operator bool() const { return input != nullptr && !input->overwritten; }
  bool is_overwritten() const { return input != nullptr && input->overwritten; }
  const Tally& tally() const { return input->tally; }
  bool has_range() const { return *this && tally().min.has_value(); }
  bool is_finite() const { return *this && tally().nonfinite() == 0; }
  bool is_number() const { return input->dtype == InputSummary::kNumber || input->shape.empty(); }
  int64_t size() const { return count_elements(input->shape); }
  std::string quote(double x) const { return format_number(x, input->dtype); }
  // Whether a negative number has the largest magnitude. Of complex numbers only the magnitude is known.
  bool is_below() const { return tally().min && -*tally().min == *tally().absmax && *tally().max < *tally().absmax; }
  std::string reach() const {
    return is_below() ? "down to " + quote(*tally().min) : "up to " + quote(*tally().absmax);
  }
  std::string zeros() const { return fmt::format("{} {}", input->name, is_number() ? "is 0" : "holds zeros"); }
};

// The operation of a finding, and what was measured of its arguments.
class Operation {
 public:
  explicit Operation(const Finding& f)
      : finding_(f),
        name_(bare_operator_name(f.op)),
        is_foreach_(without_namespace(f.op).starts_with(kForeachPrefix)) {}

  // Without namespace, underscore of the in-place form and "_foreach_".
  std::string_view name() const { return name_; }
  const Finding& finding() const { return finding_; }
  const std::string& dtype() const { return finding_.dtype; }
  bool made_nan() const { return finding_.nan > 0; }
  bool made_inf() const { return finding_.posinf > 0 || finding_.neginf > 0; }
  int64_t infinities() const { return finding_.posinf + finding_.neginf; }
  bool is_complex() const { return finding_.dtype.starts_with("complex"); }
  std::string limit() const { return format_number(largest_number(dtype()), dtype()); }

  // Returns the argument with this name in the schema; of lists the element that the result was made of.
  Argument argument(std::string_view name) const {
    const std::string element = fmt::format("{}[{}]", name, finding_.output);
    for (size_t i = 0; i < finding_.inputs.size(); ++i) {
      const std::string& known = finding_.inputs[i].name;
      if (known == name || (is_foreach_ && known == element)) return {&finding_.inputs[i], i};
    }
    return {};
  }
  // The first tensor.
  Argument self() const { return finding_.inputs.empty() ? Argument{} : Argument{&finding_.inputs[0], 0}; }

  std::vector<Argument> arguments() const {
    std::vector<Argument> found;
    for (size_t i = 0; i < finding_.inputs.size(); ++i) found.push_back({&finding_.inputs[i], i});
    return found;
  }

 private:
  const Finding& finding_;
  std::string_view name_;
  bool is_foreach_;
};

Hint about(const Argument& suspect, std::string text) { return {std::move(text), suspect.index}; }

bool holds_infinities(const Argument& x) { return x && x.tally().posinf + x.tally().neginf > 0; }

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
  if (op.is_complex() || x.input == nullptr) return {};
  if (x.is_overwritten()) {  // of finite values nothing else does that
    if (op.made_nan())
      return about(x, fmt::format("{} held {}: {} is NaN", x.input->name, domain.outside, domain.image));
    return domain.pole.empty() ? Hint{} : about(x, fmt::format("{} held {}", x.input->name, domain.pole));
  }
  if (!x.has_range()) return {};
  if (op.made_nan() && (*x.tally().min < domain.low || *x.tally().max > domain.high)) {
    return about(x, fmt::format("{} holds {}{}: {} is NaN", x.input->name, domain.outside, range_outside(x, domain),
                                domain.image));
  }
  if (op.made_nan() || domain.pole.empty()) return {};
  return about(x, fmt::format("{} holds {}", x.input->name, domain.pole));
}

// -- functions that leave the range

struct Growth {
  std::string_view op;
  bool both_signs;  // it grows with |x|
};

constexpr Growth kGrowths[] = {
    {"exp", false},       {"exp2", false}, {"expm1", false},     {"sinh", true},          {"cosh", true},
    {"special_i0", true}, {"i0", true},    {"special_i1", true}, {"special_exp2", false}, {"special_expm1", false},
};

Hint hint_for_growth(const Operation& op, const Growth& growth) {
  const Argument x = op.self();
  if (!op.made_inf() || x.input == nullptr) return {};
  if (x.is_overwritten()) {
    return about(x, fmt::format("{} of what {} held is more than {} can hold", growth.op, x.input->name, op.dtype()));
  }
  if (!x.has_range()) return {};
  double largest = *x.tally().max;
  if (growth.both_signs && std::abs(*x.tally().min) > std::abs(largest)) largest = *x.tally().min;
  return about(x, fmt::format("{} of {} is more than {} can hold", growth.op, x.quote(largest), op.dtype()));
}

Hint hint_for_gamma(const Operation& op) {
  const Argument x = op.argument("self") ? op.argument("self") : op.self();
  const bool known = x && x.has_range();
  if (!known) return {};
  if (*x.tally().min > 0) {
    if (!op.made_inf() || *x.tally().max < 1) return {};
    return about(x, fmt::format("{} of {} is more than {} can hold", op.name(), x.quote(*x.tally().max), op.dtype()));
  }
  return about(x, fmt::format("{} holds zeros or negative integers, the poles of {}", x.input->name, op.name()));
}

Hint hint_for_zeta(const Operation& op) {
  const Argument x = op.argument("self");
  if (!x.has_range() || *x.tally().min > 1) return {};
  return about(x,
               fmt::format("{} holds values of 1 or less (down to {}): zeta has a pole at 1 and is not defined below",
                           x.input->name, x.quote(*x.tally().min)));
}

Hint hint_for_entropy(const Operation& op) {
  const Argument x = op.self();
  if (!op.made_inf() || !x.has_range() || *x.tally().min >= 0) return {};
  return about(x, fmt::format("{} holds negative values (down to {}): the entropy of them is -inf", x.input->name,
                              x.quote(*x.tally().min)));
}

Hint hint_for_gamma_integral(const Operation& op) {
  for (const char* name : {"self", "other"}) {
    const Argument x = op.argument(name);
    if (!op.made_nan() || !x.has_range() || *x.tally().min >= 0) continue;
    return about(x, fmt::format("{} holds negative values (down to {}): {} is not defined there", x.input->name,
                                x.quote(*x.tally().min), op.name()));
  }
  return {};
}

// x log(y) and x log(1 + y)
Hint hint_for_weighted_logarithm(const Operation& op, double pole) {
  const Argument y = op.argument("other");
  if (!y.has_range()) return {};
  const std::string function = pole == 0 ? "log" : "log1p";
  if (op.made_nan() && *y.tally().min < pole) {
    return about(y, fmt::format("{} holds values below {} (down to {}): {} of them is NaN", y.input->name, pole,
                                y.quote(*y.tally().min), function));
  }
  if (op.made_nan() || *y.tally().min > pole) return {};
  return about(y,
               fmt::format("{} holds {}: {}({}) is -inf", y.input->name, pole == 0 ? "zeros" : "-1", function, pole));
}

// -- quotients

Hint hint_for_quotient(const Operation& op, const Argument& dividend, const Argument& divisor, std::string_view what) {
  if (divisor && divisor.tally().zeros > 0) {
    if (op.made_nan() && op.made_inf()) {
      return about(divisor, fmt::format("{}: {} is inf, and NaN where {} is zero too", divisor.zeros(), what,
                                        dividend.input != nullptr ? dividend.input->name : "the dividend"));
    }
    const std::string places = times(op.made_nan() ? op.finding().nan : op.infinities());
    if (!op.made_nan()) return about(divisor, fmt::format("{}: {} is inf, {}", divisor.zeros(), what, places));
    return about(divisor, fmt::format("{}, {} where {} is zero too: 0/0 is NaN", divisor.zeros(), places,
                                      what == "x/0" ? "the dividend" : dividend.input->name));
  }
  if (op.made_nan() && holds_infinities(dividend) && holds_infinities(divisor)) {
    return about(divisor,
                 fmt::format("{} and {} hold infinities: inf/inf is NaN", dividend.input->name, divisor.input->name));
  }
  if (op.made_nan() || !op.made_inf() || !divisor || !divisor.tally().min_abs) return {};
  const std::string small = divisor.quote(*divisor.tally().min_abs);
  if (!dividend || !dividend.tally().absmax) {
    return about(divisor, fmt::format("{} is as small as {}: the quotient is beyond {}, the largest that {} can hold",
                                      divisor.input->name, small, op.limit(), op.dtype()));
  }
  return about(divisor,
               fmt::format("{} {} divided by {} as small as {} is beyond {}, the largest that {} can hold",
                           dividend.input->name, dividend.reach(), divisor.input->name, small, op.limit(), op.dtype()));
}

Hint hint_for_division(const Operation& op) {
  Argument divisor = op.argument("other");
  if (divisor.input == nullptr) divisor = op.argument("scalar");
  return hint_for_quotient(op, op.argument("self"), divisor, "x/0");
}

Hint hint_for_remainder(const Operation& op) {
  Argument divisor = op.argument("other");
  const Argument self = op.argument("self");
  if (divisor && divisor.tally().zeros > 0) {
    return about(divisor, fmt::format("{}: {} by 0 is NaN, {}", divisor.zeros(), op.name(), times(op.finding().nan)));
  }
  if (!holds_infinities(self)) return {};
  return about(self, fmt::format("{} holds infinities: {} of them is NaN", self.input->name, op.name()));
}

Hint hint_for_reciprocal(const Operation& op) {
  const Argument x = op.self();
  if (x.is_overwritten() && !op.is_complex()) {
    return about(x, fmt::format("{} held zeros, or values too small: 1/x is beyond {}, the largest that {} can hold",
                                x.input->name, op.limit(), op.dtype()));
  }
  if (!x) return {};
  if (x.tally().zeros > 0 || op.is_complex()) {
    return about(x, fmt::format("{}: 1/0 is {}", x.zeros(), op.made_nan() ? "NaN" : "inf"));
  }
  if (!x.tally().min_abs) return {};
  return about(x, fmt::format("1/{} is more than {} can hold", x.quote(*x.tally().min_abs), op.dtype()));
}

Hint hint_for_power(const Operation& op) {
  const Argument base = op.argument("self");
  Argument exponent = op.argument("exponent");
  if (base.input == nullptr || exponent.input == nullptr || op.is_complex()) return {};
  const bool is_one = exponent.has_range() && *exponent.tally().min == *exponent.tally().max;
  const std::string power = is_one ? exponent.quote(*exponent.tally().min) : "a power that is no integer";
  if (op.made_nan()) {
    if (base.is_overwritten()) {
      return about(base, fmt::format("{} held negative values: a negative base to the power {} is NaN",
                                     base.input->name, power));
    }
    if (!base.has_range() || *base.tally().min >= 0) return {};
    return about(base, fmt::format("{} holds negative values (down to {}): a negative base to the power {} is NaN",
                                   base.input->name, base.quote(*base.tally().min), power));
  }
  if (!exponent.has_range()) return {};
  const double lowest = *exponent.tally().min;
  if (base && base.tally().zeros > 0 && lowest < 0) {
    return about(base, fmt::format("{}: 0 to the power {} is inf", base.zeros(), exponent.quote(lowest)));
  }
  if (!base.has_range()) return {};
  const bool is_small = lowest < 0 && base.tally().min_abs && *base.tally().min_abs < 1;
  const double x = is_small ? *base.tally().min_abs : *base.tally().absmax;
  return about(base, fmt::format("{} to the power {} is more than {} can hold", base.quote(x),
                                 exponent.quote(is_small ? lowest : *exponent.tally().max), op.dtype()));
}

// -- infinities that cancel

Hint hint_for_product_with_infinity(const Operation& op) {
  const std::vector<Argument> all = op.arguments();
  for (const Argument& zero : all) {
    for (const Argument& infinite : all) {
      if (zero.index == infinite.index || !zero || zero.tally().zeros == 0 || !holds_infinities(infinite)) continue;
      return about(infinite, fmt::format("{} holds infinities where {} is zero: 0 * inf is NaN", infinite.input->name,
                                         zero.input->name));
    }
  }
  return {};
}

Hint hint_for_cancelling(const Operation& op) {
  std::vector<Argument> infinite;
  for (const Argument& x : op.arguments()) {
    if (holds_infinities(x)) infinite.push_back(x);
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
  if (!holds_infinities(x)) return {};
  return about(x, fmt::format("{} holds infinities: {} of them is NaN", x.input->name, op.name()));
}

// A softmax of finite numbers and -inf is NaN only where there was nothing but -inf.
Hint hint_for_softmax(const Operation& op) {
  const Argument x = op.self();
  if (!op.made_nan() || !x || x.tally().nan > 0) return {};
  if (x.tally().posinf > 0) return about(x, fmt::format("{} holds +inf: inf - inf is NaN", x.input->name));
  if (x.tally().neginf == 0) return {};
  return about(x, fmt::format("the row of {} at [{}] is -inf everywhere: softmax of a fully masked row is 0/0",
                              x.input->name, fmt::join(op.finding().first_index, ",")));
}

Hint hint_for_attention(const Operation& op) {
  Argument mask = op.argument("attn_mask");
  if (mask.input == nullptr) mask = op.argument("attn_bias");
  const bool is_float_mask = mask && mask.tally().neginf > 0 && mask.tally().nan == 0 && mask.tally().posinf == 0;
  const bool is_bool_mask = mask && mask.input->dtype == "bool" && mask.tally().zeros > 0;
  const Argument query = op.argument("query");
  const Argument key = op.argument("key");
  const bool known = query && key && query.tally().absmax && key.tally().absmax && !query.input->shape.empty();
  if (!known || !query.is_finite() || !key.is_finite()) return {};
  const double product = *query.tally().absmax * *key.tally().absmax * static_cast<double>(query.input->shape.back());
  if (product >= largest_number(op.dtype())) {
    return about(query, fmt::format("query {} and key {}: their products are beyond {}, the largest that {} can hold",
                                    query.reach(), key.reach(), op.limit(), op.dtype()));
  }
  if (!op.made_nan() || (!is_float_mask && !is_bool_mask)) return {};
  return about(mask, fmt::format("a row of {} is {} everywhere: softmax of a fully masked row is 0/0", mask.input->name,
                                 is_float_mask ? "-inf" : "False"));
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
  if (!op.made_nan() || !x || !x.is_finite() || results == 0) return {};
  const Argument correction = op.argument("correction");
  const double subtracted = correction.has_range() ? *correction.tally().min : 1;
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
  if (!weight || weight.tally().zeros == 0) return {};
  return about(weight, "the weights of all targets are 0: a mean over nothing is 0/0");
}

Hint hint_for_ctc_loss(const Operation& op) {
  const Argument x = op.argument("log_probs");
  if (!op.made_inf() || !x.is_finite()) return {};
  return about(x,
               "an input is too short for its target, counting a blank between equal neighbours: no alignment exists");
}

// -- normalisation

Hint hint_for_normalization(const Operation& op) {
  const Argument variance = op.argument("running_var");
  if (op.made_nan() && variance.has_range() && *variance.tally().min < 0) {
    return about(variance, fmt::format("running_var holds negative values (down to {}): their square root is NaN",
                                       variance.quote(*variance.tally().min)));
  }
  const Argument x = op.self();
  const Argument eps = op.argument("eps");
  if (!x.is_finite() || !x.tally().absmax) return {};
  const double squares = *x.tally().absmax * *x.tally().absmax * static_cast<double>(x.size());
  if (squares > largest_number(op.dtype())) {
    return about(x, fmt::format("{} {}: its variance is beyond {}, the largest that {} can hold", x.input->name,
                                x.reach(), op.limit(), op.dtype()));
  }
  if (!eps.has_range() || *eps.tally().min != 0) return {};
  return about(eps, fmt::format("eps is 0, and the variance of a row of {} is 0: 0/0 is NaN", x.input->name));
}

// -- linear algebra

Hint hint_for_inverse(const Operation& op) {
  const Argument x = op.self();
  if (!x.is_finite()) return {};
  return about(x, fmt::format("{} is singular, or so nearly that its inverse is beyond {}", x.input->name, op.dtype()));
}

Hint hint_for_determinant(const Operation& op) {
  const Argument x = op.self();
  if (op.finding().neginf == 0 || !x.is_finite()) return {};
  return about(x, fmt::format("{} is singular: the logarithm of a determinant of 0 is -inf", x.input->name));
}

// -- optimizers in one kernel

Hint hint_for_fused_step(const Operation& op) {
  const Argument eps = op.argument("eps");
  if (op.made_nan() && eps.has_range() && *eps.tally().min == 0) {
    return about(eps, "eps is 0: where the gradient has been 0 in every step, 0/0 is NaN");
  }
  return {};
}

// -- the range of the dtype

constexpr std::array kArithmetic = {
    "add"sv,
    "sub"sv,
    "rsub"sv,
    "mul"sv,
    "sum"sv,
    "nansum"sv,
    "mean"sv,
    "cumsum"sv,
    "prod"sv,
    "cumprod"sv,
    "mm"sv,
    "bmm"sv,
    "addmm"sv,
    "addbmm"sv,
    "baddbmm"sv,
    "addmv"sv,
    "mv"sv,
    "dot"sv,
    "vdot"sv,
    "addr"sv,
    "_to_copy"sv,
    "copy"sv,
    "lerp"sv,
    "addcmul"sv,
    "hypot"sv,
    "ldexp"sv,
    "dist"sv,
    "norm"sv,
    "linear"sv,
    "convolution"sv,
    "index_add"sv,
    "scatter_add"sv,
    "mse_loss"sv,
    "huber_loss"sv,
    "div"sv,
    "linalg_vector_norm"sv,
    "linalg_cross"sv,
    "linalg_matrix_exp"sv,
    "linalg_solve_triangular"sv,
    "_linalg_det"sv,
    "_cdist_forward"sv,
    "_euclidean_dist"sv,
    "_pdist_forward"sv,
    "_fft_r2c"sv,
    "_fft_c2c"sv,
    "_fft_c2r"sv,
    "scatter_reduce"sv,
    "index_reduce"sv,
    "index_put"sv,
    "_index_put_impl"sv,
    "embedding_dense_backward"sv,
    "embedding_bag"sv,
    "_embedding_bag"sv,
    "_embedding_bag_forward_only"sv,
    "avg_pool2d"sv,
    "avg_pool3d"sv,
    "_adaptive_avg_pool2d"sv,
    "convolution_backward"sv,
    "mkldnn_convolution"sv,
    "_convolution"sv,
    "_addmm_activation"sv,
    "_sparse_addmm"sv,
    "_sparse_mm"sv,
    "soft_margin_loss"sv,
    "binary_cross_entropy_with_logits"sv,
    "smooth_l1_loss"sv,
    "var"sv,
    "std"sv,
    "var_mean"sv,
    "std_mean"sv,
    "_fused_adam"sv,
    "_fused_adamw"sv,
    "_fused_sgd"sv,
    "_fused_adagrad"sv,
    "trapezoid"sv,
    "pow"sv,
    "square"sv,
    "addcdiv"sv,
    "maximum"sv,
    "polar"sv,
    "logaddexp"sv,
    "mkldnn_linear"sv,
    "_weight_norm_interface"sv,
};

bool is_arithmetic(std::string_view op) {
  return std::find(kArithmetic.begin(), kArithmetic.end(), op) != kArithmetic.end();
}

std::string describe_operands(const std::vector<Argument>& operands) {
  std::vector<std::string> parts;
  for (const Argument& x : operands) {
    if (parts.size() == 4) break;
    const bool is_number = x.input->dtype == InputSummary::kNumber;
    parts.push_back(is_number ? fmt::format("{} {}", x.input->name, x.quote(*x.tally().min))
                              : fmt::format("{} {}", x.input->name, x.reach()));
  }
  return parts.empty() ? "" : fmt::format(" ({})", fmt::join(parts, ", "));
}

// A weight that is this many times as large as before the first step has diverged.
constexpr double kGrown = 100;

// "; mat2 has grown from 0.3 at step 1", of the first weight that has.
std::string describe_growth(const Operation& op) {
  for (const Argument& x : op.arguments()) {
    const std::optional<double>& before = x.input->initial_absmax;
    if (!before) continue;
    if (x.is_overwritten()) {
      return fmt::format("; {} was up to {} at step {}", x.input->name, x.quote(*before), x.input->initial_step);
    }
    if (!x.tally().absmax || *x.tally().absmax < kGrown * *before) continue;
    return fmt::format("; {} has grown from {} at step {}", x.input->name, x.quote(*before), x.input->initial_step);
  }
  return "";
}

// For finite inputs whose result does not fit into the dtype of the result.
Hint hint_for_range(const Operation& op) {
  const bool is_known = is_arithmetic(op.name());
  if (!op.made_inf() && !(is_known && op.made_nan())) return {};
  if (op.arguments().empty()) return {};
  const double limit = largest_number(op.dtype());
  if (!std::isfinite(limit) || (!is_known && op.dtype() != "float16")) return {};
  std::vector<Argument> operands;
  for (const Argument& x : op.arguments()) {
    if (x.input->tally.nonfinite() > 0) return {};
    const bool counts = x && x.tally().absmax && x.input->dtype.find("int") == std::string::npos;
    if (counts && x.input->dtype != "bool" && *x.tally().absmax > 0) operands.push_back(x);
  }
  std::stable_sort(operands.begin(), operands.end(), [](const Argument& a, const Argument& b) {
    return std::min(*a.tally().absmax, 1e4) > std::min(*b.tally().absmax, 1e4);
  });
  if (operands.empty() && !op.made_inf()) return {};
  if (!operands.empty() && *operands[0].tally().absmax > limit) {
    const Argument& x = operands[0];
    const auto [extreme, sign] = x.is_below() ? std::pair("lowest", -1.0) : std::pair("largest", 1.0);
    return about(x,
                 fmt::format("the {0} value, {1}, is beyond {2}, the {0} that {3} can hold", extreme,
                             x.quote(sign * *x.tally().absmax), format_number(sign * limit, op.dtype()), op.dtype()));
  }
  const std::string what = op.made_nan() ? "a result on the way" : "the result";
  std::string text = fmt::format("{} is beyond {}, the largest that {} can hold{}", what, op.limit(), op.dtype(),
                                 describe_operands(operands));
  if (op.made_nan()) text += ": inf - inf is NaN";
  text += describe_growth(op);
  return operands.empty() ? Hint{std::move(text)} : about(operands[0], std::move(text));
}

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
    {"lgamma", hint_for_gamma},
    {"digamma", hint_for_gamma},
    {"polygamma", hint_for_gamma},
    {"mvlgamma", hint_for_gamma},
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
    {"addcdiv",
     [](const Operation& op) {
       Argument dividend = op.argument("tensor1");
       return hint_for_quotient(op, dividend, op.argument("tensor2"), "tensor1 / tensor2");
     }},
    {"fmod", hint_for_remainder},
    {"remainder", hint_for_remainder},
    {"reciprocal", hint_for_reciprocal},
    {"pow", hint_for_power},
    {"mul", hint_for_product_with_infinity},
    {"mm", hint_for_product_with_infinity},
    {"bmm", hint_for_product_with_infinity},
    {"addmm", hint_for_product_with_infinity},
    {"baddbmm", hint_for_product_with_infinity},
    {"addcmul", hint_for_product_with_infinity},
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
    {"_linalg_solve_ex", hint_for_inverse},
    {"linalg_solve_triangular", hint_for_inverse},
    {"triangular_solve", hint_for_inverse},
    {"linalg_lu_solve", hint_for_inverse},
    {"lu_solve", hint_for_inverse},
    {"cholesky_inverse", hint_for_inverse},
    {"cholesky_solve", hint_for_inverse},
    {"_cholesky_solve_helper", hint_for_inverse},
    {"_linalg_slogdet", hint_for_determinant},
    {"_fused_adam", hint_for_fused_step},
    {"_fused_adamw", hint_for_fused_step},
};

template <typename Entries>
auto find_entry(const Entries& entries, std::string_view op) {
  return std::find_if(std::begin(entries), std::end(entries), [&](const auto& entry) { return entry.op == op; });
}

}  // namespace

Hint hint_for_operator(const Finding& finding) {
  const Operation op(finding);
  Hint hint;
  if (const auto domain = find_entry(kDomains, op.name()); domain != std::end(kDomains)) {
    hint = hint_for_domain(op, *domain);
  } else if (const auto growth = find_entry(kGrowths, op.name()); growth != std::end(kGrowths)) {
    hint = hint_for_growth(op, *growth);
  } else if (const auto rule = find_entry(kRules, op.name()); rule != std::end(kRules)) {
    hint = rule->rule(op);
  }
  if (hint.text.empty()) hint = hint_for_number(op);
  return hint.text.empty() ? hint_for_range(op) : hint;
}

}  // namespace torchnan
