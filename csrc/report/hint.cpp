#include "report/hint.h"

#include <algorithm>
#include <initializer_list>
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

const InputSummary* input(const Finding& f, size_t i) {
  return i < f.inputs.size() && !f.inputs[i].overwritten ? &f.inputs[i] : nullptr;
}

std::string of_logarithm(const Finding& f) {
  const InputSummary* x = input(f, 0);
  if (x == nullptr || !x->tally.min) return "";
  if (f.kind == Kind::kNaN && *x->tally.min < 0) {
    return fmt::format("{} holds negative values (down to {:.6g}): their logarithm is NaN", x->name, *x->tally.min);
  }
  if (f.kind == Kind::kInf && *x->tally.min == 0) return fmt::format("{} holds zeros: log(0) is -inf", x->name);
  return "";
}

std::string of_square_root(const Finding& f) {
  const InputSummary* x = input(f, 0);
  if (x == nullptr || !x->tally.min) return "";
  if (f.kind == Kind::kNaN && *x->tally.min < 0) {
    return fmt::format("{} holds negative values (down to {:.6g}): their square root is NaN", x->name, *x->tally.min);
  }
  if (f.kind == Kind::kInf && *x->tally.min == 0) return fmt::format("{} holds zeros: 1/sqrt(0) is inf", x->name);
  return "";
}

std::string of_division(const Finding& f) {
  const InputSummary* divisor = input(f, 1);
  if (divisor == nullptr || !divisor->tally.min) return "";
  if (*divisor->tally.min > 0 || *divisor->tally.max < 0) return "";
  return f.kind == Kind::kNaN ? fmt::format("{} holds zeros where the dividend is zero: 0/0 is NaN", divisor->name)
                              : fmt::format("{} holds zeros: x/0 is inf", divisor->name);
}

// A softmax of finite numbers and -inf is NaN only where there was nothing but -inf.
std::string of_softmax(const Finding& f) {
  const InputSummary* x = input(f, 0);
  if (f.kind != Kind::kNaN || x == nullptr || x->tally.neginf == 0) return "";
  if (x->tally.nan > 0 || x->tally.posinf > 0) return "";
  return fmt::format("the row of {} at [{}] is -inf everywhere: softmax of a fully masked row is 0/0", x->name,
                     fmt::join(f.first_index, ","));
}

std::string of_exponential(const Finding& f) {
  const InputSummary* x = input(f, 0);
  if (f.kind != Kind::kInf || x == nullptr || !x->tally.max) return "";
  return fmt::format("exp of {:.6g} is more than {} can hold", *x->tally.max, f.dtype);
}

std::string of_narrowing(const Finding& f) {
  const InputSummary* x = input(f, 0);
  if (f.kind != Kind::kInf || x == nullptr || !x->tally.absmax || x->dtype == f.dtype) return "";
  if (f.dtype != "float16" || *x->tally.absmax <= 65504) return "";
  return fmt::format("the largest value, {:.6g}, is beyond 65504, the largest that float16 can hold", *x->tally.absmax);
}

}  // namespace

std::string hint_for(const Finding& f) {
  if (f.origin == Origin::kInput && (f.op == "torchnan::guard" || f.op == "autograd::backward")) {
    return "nothing that was watched has made it: run it under torchnan.detect() to see which operation does";
  }
  if (f.origin != Origin::kOp) return "";
  const std::string_view op = bare(f.op);
  if (is_one_of(op, {"log", "log2", "log10"})) return of_logarithm(f);
  if (is_one_of(op, {"sqrt", "rsqrt"})) return of_square_root(f);
  if (is_one_of(op, {"div", "true_divide", "divide"})) return of_division(f);
  if (is_one_of(op, {"_softmax", "_log_softmax", "softmax", "log_softmax"})) return of_softmax(f);
  if (is_one_of(op, {"exp"})) return of_exponential(f);
  if (is_one_of(op, {"_to_copy", "copy"})) return of_narrowing(f);
  return "";
}

}  // namespace torchnan
