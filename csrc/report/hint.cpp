#include "report/hint.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <numeric>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace torchnan {
namespace {

std::string_view bare(const std::string& op) {
  const std::string_view name = op;
  const size_t colons = name.find("::");
  return colons == std::string_view::npos ? name : name.substr(colons + 2);
}

bool is_one_of(std::string_view op, std::initializer_list<std::string_view> names) {
  while (!op.empty() && op.back() == '_') op.remove_suffix(1);  // the in-place form
  return std::find(names.begin(), names.end(), op) != names.end();
}

int64_t bad_elements(const Finding& f) { return f.nan + f.posinf + f.neginf; }

const InputSummary* input(const Finding& f, size_t i) {
  return i < f.inputs.size() && !f.inputs[i].overwritten ? &f.inputs[i] : nullptr;
}

std::string hint_for_logarithm(const Finding& f) {
  const InputSummary* x = input(f, 0);
  if (x == nullptr || !x->tally.min) return "";
  if (f.kind == Kind::kNaN && *x->tally.min < 0) {
    return fmt::format("{} holds negative values (down to {:.6g}): their logarithm is NaN", x->name, *x->tally.min);
  }
  if (f.kind == Kind::kInf && *x->tally.min == 0) return fmt::format("{} holds zeros: log(0) is -inf", x->name);
  return "";
}

std::string hint_for_square_root(const Finding& f) {
  const InputSummary* x = input(f, 0);
  if (x == nullptr || !x->tally.min) return "";
  if (f.kind == Kind::kNaN && *x->tally.min < 0) {
    return fmt::format("{} holds negative values (down to {:.6g}): their square root is NaN", x->name, *x->tally.min);
  }
  if (f.kind == Kind::kInf && *x->tally.min == 0) return fmt::format("{} holds zeros: 1/sqrt(0) is inf", x->name);
  return "";
}

std::string hint_for_division(const Finding& f) {
  const InputSummary* divisor = input(f, 1);
  if (divisor == nullptr || !divisor->tally.min) return "";
  if (*divisor->tally.min > 0 || *divisor->tally.max < 0) return "";
  const std::string places = bad_elements(f) == 1 ? "once" : fmt::format("{} times", bad_elements(f));
  return f.kind == Kind::kNaN
             ? fmt::format("{} holds zeros, {} where the dividend is zero too: 0/0 is NaN", divisor->name, places)
             : fmt::format("{} holds zeros: x/0 is inf, {}", divisor->name, places);
}

// A softmax of finite numbers and -inf is NaN only where there was nothing but -inf.
std::string hint_for_softmax(const Finding& f) {
  const InputSummary* x = input(f, 0);
  if (f.kind != Kind::kNaN || x == nullptr || x->tally.neginf == 0) return "";
  if (x->tally.nan > 0 || x->tally.posinf > 0) return "";
  return fmt::format("the row of {} at [{}] is -inf everywhere: softmax of a fully masked row is 0/0", x->name,
                     fmt::join(f.first_index, ","));
}

std::string hint_for_exponential(const Finding& f) {
  const InputSummary* x = input(f, 0);
  if (f.kind != Kind::kInf || x == nullptr || !x->tally.max) return "";
  return fmt::format("exp of {:.6g} is more than {} can hold", *x->tally.max, f.dtype);
}

int64_t elements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::string hint_for_variance(const Finding& f) {
  const InputSummary* x = input(f, 0);
  if (f.kind != Kind::kNaN || x == nullptr || x->tally.nonfinite() > 0) return "";
  if (elements(x->shape) > elements(f.shape)) return "";  // variance of several elements
  return fmt::format("the variance of a single element of {}: the unbiased estimate divides by n - 1 = 0", x->name);
}

// For finite inputs whose result does not fit into float16.
std::string hint_for_half_range(const Finding& f) {
  if (f.kind != Kind::kInf || f.dtype != "float16" || f.inputs.empty()) return "";
  double largest = 0;
  for (const InputSummary& x : f.inputs) {
    if (x.overwritten || x.tally.nonfinite() > 0) return "";
    largest = std::max(largest, x.tally.absmax.value_or(0));
  }
  if (largest > 65504) {
    return fmt::format("the largest value, {:.6g}, is beyond 65504, the largest that float16 can hold", largest);
  }
  return fmt::format("the result is beyond 65504, the largest that float16 can hold (largest input {:.6g})", largest);
}

bool holds_zero(const Finding& f) {
  return std::any_of(f.inputs.begin(), f.inputs.end(),
                     [](const InputSummary& x) { return x.tally.min && *x.tally.min <= 0 && *x.tally.max >= 0; });
}

// Derives a hint from the formula of a backward node.
std::string hint_for_node(const Finding& f) {
  const std::string_view node = f.node;
  const auto is = [&](std::string_view name) { return node.rfind(name, 0) == 0; };
  if (is("LinalgEigh")) return "two eigenvalues are equal: the gradient of eigenvectors divides by their difference";
  if (is("LinalgSvd")) return "two singular values are equal: the gradient of the vectors divides by their difference";
  if (is("Acos") || is("Asin")) return "the slope of acos and asin at 1 and -1 is infinite";
  if (!holds_zero(f)) return "";
  if (is("Sqrt")) return "the slope of sqrt at 0 is infinite: 1 / (2 sqrt(0)), as in a norm of zeros";
  if (is("LinalgVectorNorm") || is("Norm")) return "a norm has no slope at zero: it divides by itself";
  if (is("Pow")) return "the slope of x ** p at 0 is infinite where p is less than 1";
  if (is("Log")) return "the slope of log at 0 is infinite: 1 / 0";
  if (is("Div") || is("Reciprocal")) return "the slope of 1/x at 0 is infinite";
  return "";
}

std::string hint_for_input(const Finding& f) {
  if (f.op == "torchnan::guard" || f.op == "autograd::backward") {
    return "no checked operation made it: run it under torchnan.detect() to see which operation does";
  }
  if (f.first_index.size() < 2) return "";
  return fmt::format("row {} of {} is the first with a non-finite value ({} in all)", f.first_index[0], f.shape[0],
                     bad_elements(f));
}

std::string hint_for_operation(const Finding& f) {
  const std::string_view op = bare(f.op);
  if (is_one_of(op, {"log", "log2", "log10"})) return hint_for_logarithm(f);
  if (is_one_of(op, {"sqrt", "rsqrt"})) return hint_for_square_root(f);
  if (is_one_of(op, {"div", "true_divide", "divide"})) return hint_for_division(f);
  if (is_one_of(op, {"_softmax", "_log_softmax", "softmax", "log_softmax"})) return hint_for_softmax(f);
  if (is_one_of(op, {"exp"})) return hint_for_exponential(f);
  if (is_one_of(op, {"var", "std", "var_mean", "std_mean"})) return hint_for_variance(f);
  return "";
}

}  // namespace

std::string hint_for_collective(const std::string& collective) {
  return fmt::format("{} received it from another rank: see the report of that rank for its origin", bare(collective));
}

std::string hint_for(const Finding& f) {
  switch (f.origin) {
    case Origin::kInput:
      return hint_for_input(f);
    case Origin::kUninit:
      return "nothing has written to this memory: empty() does not initialize it";
    case Origin::kOp:
      break;
    default:
      return "";
  }
  std::string hint = f.node.empty() ? "" : hint_for_node(f);
  if (hint.empty()) hint = hint_for_operation(f);
  return hint.empty() ? hint_for_half_range(f) : hint;
}

}  // namespace torchnan
