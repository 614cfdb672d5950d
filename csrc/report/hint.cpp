#include "report/hint.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "report/operator_hints.h"

namespace torchnan {
namespace {

// Derives a hint from the formula of a backward node.
struct NodeHint {
  std::string_view stem;  // of "SqrtBackward0"
  bool needs_zero;        // it holds only if an argument holds zeros
  std::string_view text;
};

constexpr NodeHint kNodeHints[] = {
    {"LinalgEigh", false, "two eigenvalues are equal: the gradient of eigenvectors divides by their difference"},
    {"LinalgEig", false, "two eigenvalues are equal: the gradient of eigenvectors divides by their difference"},
    {"LinalgSvd", false, "two singular values are equal: the gradient of the vectors divides by their difference"},
    {"Acos", false, "the slope of acos and asin at 1 and -1 is infinite"},
    {"Asin", false, "the slope of acos and asin at 1 and -1 is infinite"},
    {"Acosh", false, "the slope of acosh at 1 is infinite"},
    {"Atanh", true, "the slope of atanh at 1 and -1 is infinite"},
    {"Erfinv", false, "the slope of erfinv at 1 and -1 is infinite"},
    {"Sqrt", true, "the slope of sqrt at 0 is infinite: 1 / (2 sqrt(0)), as in a norm of zeros"},
    {"LinalgVectorNorm", true, "a norm has no slope at zero: it divides by itself"},
    {"Norm", true, "a norm has no slope at zero: it divides by itself"},
    {"Pow", true, "the slope of x ** p at 0 is infinite where p is less than 1"},
    {"Log", true, "the slope of log at 0 is infinite: 1 / 0"},
    {"Log2", true, "the slope of log at 0 is infinite: 1 / 0"},
    {"Log10", true, "the slope of log at 0 is infinite: 1 / 0"},
    {"Log1P", true, "the slope of log1p at -1 is infinite: 1 / 0"},
    {"Xlogy", true, "the slope of log at 0 is infinite: 1 / 0"},
    {"Logit", true, "the slope of logit at 0 and 1 is infinite"},
    {"Div", true, "the slope of 1/x at 0 is infinite"},
    {"Reciprocal", true, "the slope of 1/x at 0 is infinite"},
    {"Std", true, "a standard deviation of 0 has no slope: its gradient divides by itself"},
    {"StdMean", true, "a standard deviation of 0 has no slope: its gradient divides by itself"},
    {"Hypot", true, "hypot has no slope at zero: it divides by itself"},
    {"Atan2", true, "atan2 has no slope where both arguments are zero"},
    {"Cdist", true, "a distance of zero has no slope: its gradient divides by itself"},
    {"EuclideanDist", true, "a distance of zero has no slope: its gradient divides by itself"},
};

// "SqrtBackward0" -> "Sqrt".
std::string_view stem_of(std::string_view node) { return node.substr(0, node.rfind("Backward")); }

Hint hint_for_node(const Finding& f) {
  const std::string_view stem = stem_of(f.node);
  const auto known = std::find_if(std::begin(kNodeHints), std::end(kNodeHints),
                                  [&](const NodeHint& hint) { return hint.stem == stem; });
  if (known == std::end(kNodeHints)) return {};
  for (size_t i = 0; i < f.inputs.size(); ++i) {
    const Tally& tally = f.inputs[i].tally;
    if (tally.zeros > 0 || (tally.min && *tally.min <= 0 && *tally.max >= 0)) return {std::string(known->text), i};
  }
  return known->needs_zero ? Hint{} : Hint{std::string(known->text)};
}

Hint hint_for_input(const Finding& f) {
  if (f.op == "torchnan::guard" || f.op == "autograd::backward") {
    return {"no checked operation made it: run it under torchnan.detect() to see which operation does"};
  }
  if (f.first_index.size() < 2) return {};
  return {fmt::format("row {} of {} is the first with a non-finite value ({} in all)", f.first_index[0], f.shape[0],
                      f.nan + f.posinf + f.neginf)};
}

}  // namespace

std::string hint_for_evicted_origin() {
  return "the operation that made it is older than the operations on devices that are on record: the one that is named "
         "is the first that was seen to read it";
}

std::string hint_for_collective(const std::string& collective) {
  const size_t colons = collective.find("::");
  return fmt::format("{} received it from another rank: see the report of that rank for its origin",
                     colons == std::string::npos ? collective : collective.substr(colons + 2));
}

Hint hint_for(const Finding& f) {
  switch (f.origin) {
    case Origin::kInput:
      return hint_for_input(f);
    case Origin::kUninit:
      return {"nothing has written to this memory: empty() does not initialize it"};
    case Origin::kOp:
      break;
    default:
      return {};
  }
  Hint hint = f.node.empty() ? Hint{} : hint_for_node(f);
  return hint.text.empty() ? hint_for_operator(f) : hint;
}

}  // namespace torchnan
