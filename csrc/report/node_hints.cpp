#include "report/hint_rules.h"
#include "base/format.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

namespace torchnan {
namespace {

// A formula of a node that makes an Inf, or a NaN, of every zero in this argument of this operation, and of no other
// value for which the sentence would be true.
struct Slope {
  std::string_view stem;  // of "SqrtBackward0"
  std::string_view op;
  std::string_view argument;
  std::string_view text;
};

constexpr std::string_view kLog = "the slope of log at 0 is infinite: 1 / 0";
constexpr std::string_view kAcos = "the slope of acos and asin at 1 and -1 is infinite";
constexpr std::string_view kNorm = "a norm has no slope at zero: it divides by itself";
constexpr std::string_view kStd = "a standard deviation of 0 has no slope: its gradient divides by itself";
constexpr std::string_view kEigenvalues =
    "two eigenvalues are equal: the gradient of eigenvectors divides by their difference";

constexpr Slope kSlopes[] = {
    {"LinalgEigh", "div", "other", kEigenvalues},
    {"LinalgEig", "div", "other", kEigenvalues},
    {"Acos", "rsqrt", "self", kAcos},
    {"Asin", "rsqrt", "self", kAcos},
    {"Acosh", "rsqrt", "self", "the slope of acosh at 1 is infinite"},
    {"Atanh", "div", "other", "the slope of atanh at 1 and -1 is infinite"},
    {"Sqrt", "div", "other", "the slope of sqrt at 0 is infinite: 1 / (2 sqrt(0)), as in a norm of zeros"},
    {"LinalgVectorNorm", "div", "other", kNorm},
    {"Norm", "div", "other", kNorm},
    {"Dist", "div", "other", kNorm},
    {"Pow", "pow", "self", "the slope of x ** p at 0 is infinite where p is less than 1"},
    {"Log", "div", "other", kLog},
    {"Log2", "div", "other", kLog},
    {"Log10", "div", "other", kLog},
    {"Xlogy", "div", "other", kLog},
    {"Log1P", "div", "other", "the slope of log1p at -1 is infinite: 1 / 0"},
    {"Div", "div", "other", "the slope of 1/x at 0 is infinite"},
    {"Std", "div", "other", kStd},
    {"StdMean", "div", "other", kStd},
    {"Hypot", "div", "other", "hypot has no slope at zero: it divides by itself"},
    {"Atan2", "reciprocal", "self", "the squares of both arguments of atan2 are 0: its slope divides by their sum"},
};

// "SqrtBackward0" -> "Sqrt". The node of a user-defined Function, "SqrtBackward", has no number: its formula is not
// known.
std::string_view stem_of(std::string_view node) {
  static constexpr std::string_view kSuffix = "Backward";
  const size_t end = node.rfind(kSuffix);
  return end == std::string_view::npos || end + kSuffix.size() == node.size() ? "" : node.substr(0, end);
}

// Checks the other conditions: a negative number gives a NaN; a power is infinite at 0 only if the exponent is below 0.
bool makes_it_of_zeros(const Operation& op) {
  if (op.name() == "rsqrt") return !op.made_nan();
  if (op.name() != "pow") return true;
  const Argument exponent = op.argument("exponent");
  return !op.made_nan() && exponent.has_range() && exponent.max() < 0;
}

// A quotient of finite numbers is NaN only as 0/0: the gradient of a branch that where() did not take is 0.
std::string_view addition_for(const Operation& op, std::string_view text) {
  const bool is_quotient = op.name() == "div" && text.starts_with("the slope of");
  return is_quotient && op.made_nan() && op.is_of_finite() ? "; where the gradient is 0 too, 0/0 is NaN" : "";
}

// It divides by the differences of the squares of all singular values (square matrix), and by the values themselves.
Hint hint_for_singular_values(const Operation& op) {
  const Argument divisor = op.argument("other");
  if (op.name() != "div" || !divisor.holds_zeros() || divisor.input->shape.size() < 2) return {};
  const int64_t columns = divisor.input->shape.back();
  const bool is_of_pairs = columns > 1 && divisor.input->shape.end()[-2] == columns;
  return about(divisor, is_of_pairs
                            ? "two singular values are equal: the gradient of the vectors divides by their difference"
                            : "a singular value is 0: the gradient of the vectors divides by it");
}

Hint hint_for_logit(const Operation& op) {
  const Argument x = op.argument("self");
  if (op.name() != "logit_backward" || !x.has_range() || op.argument("eps").input != nullptr) return {};
  if (x.min() < 0 || x.max() > 1) {
    if (!op.made_nan()) return {};
    return about(x, format_text("{} from {} to {}: logit has no slope outside [0, 1]", x.input->name, x.quote(x.min()),
                                x.quote(x.max())));
  }
  if (x.min() > 0 && x.max() < 1) return {};
  return about(x, "the slope of logit at 0 and 1 is infinite");
}

}  // namespace

Hint hint_for_node(const Operation& op) {
  const std::string_view stem = stem_of(op.finding().node);
  if (stem == "LinalgSvd") return hint_for_singular_values(op);
  if (stem == "Logit") return hint_for_logit(op);
  const auto known = std::find_if(std::begin(kSlopes), std::end(kSlopes), [&](const Slope& slope) {
    return slope.stem == stem && slope.op == op.name() && op.argument(slope.argument).holds_zeros();
  });
  if (known == std::end(kSlopes) || !makes_it_of_zeros(op)) return {};
  return about(op.argument(known->argument), format_text("{}{}", known->text, addition_for(op, known->text)));
}

}  // namespace torchnan
