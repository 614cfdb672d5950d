#include "report/hints/families.h"

#include "base/format.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>

namespace torchnan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Domain {
  std::string_view op;
  double low;  // the function is finite between these
  double high;
  std::string_view outside;  // describes the values outside
  std::string_view image;    // the result of these, which is NaN
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
  if (min < domain.low && max > domain.high) return format_text(" (from {} to {})", x.quote(min), x.quote(max));
  if (min < domain.low) return format_text(" (down to {})", x.quote(min));
  return format_text(" (up to {})", x.quote(max));
}

Hint hint_for_domain(const Operation& op, const Domain& domain) {
  const Argument x = op.self();
  const bool is_clamped = op.argument("eps").input != nullptr;  // logit
  if (op.is_complex() || is_clamped || x.input == nullptr) return {};
  if (x.is_overwritten()) {  // for finite values this is the only reason
    if (op.made_nan())
      return about(x, format_text("{} held {}: {} is NaN", x.input->name, domain.outside, domain.image));
    return domain.pole.empty() ? Hint{} : about(x, format_text("{} held {}", x.input->name, domain.pole));
  }
  if (!x.has_range()) return {};
  if (op.made_nan()) {
    if (x.min() >= domain.low && x.max() <= domain.high) return {};
    return about(x, format_text("{} holds {}{}: {} is NaN", x.input->name, domain.outside, range_outside(x, domain),
                                domain.image));
  }
  if (domain.pole.empty() || (x.min() != domain.low && x.max() != domain.high)) return {};
  return about(x, format_text("{} holds {}", x.input->name, domain.pole));
}

}  // namespace

Hint hint_of_domains(const Operation& op) {
  const auto domain =
      std::find_if(std::begin(kDomains), std::end(kDomains), [&](const Domain& one) { return one.op == op.name(); });
  return domain == std::end(kDomains) ? Hint{} : hint_for_domain(op, *domain);
}

}  // namespace torchnan
