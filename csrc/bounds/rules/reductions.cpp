// Sums and extremes over dimensions.
#include "bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;

// sum(x, dtype), or sum(x, dims, keepdim, dtype) where no dims are all dims: of all that is added up.
void sum(A a, Results out) {
  double terms = 1;
  const auto dims = a.size() < 4 ? c10::SmallVector<int64_t, 5>() : a.integers(1);
  for (const int64_t dim : dims) terms *= static_cast<double>(a.size(0, dim));
  if (dims.empty()) terms = static_cast<double>(a.numel(0));
  out[0] = {a.sum_of(terms, a.max_abs(0)), a.nonnegative(0)};
}

// A mean is within what it is taken of; its sum comes first. Of nothing it is NaN.
void mean(A a, Results out) {
  if (a.numel(0) == 0) return;
  const double total = a.sum_of(static_cast<double>(a.numel(0)), a.max_abs(0));
  if (total < a.limit()) out[0] = {a.sum_of(1, a.max_abs(0)), a.nonnegative(0)};
}

// cumsum(x, dim)
void cumsum(A a, Results out) {
  out[0] = {a.sum_of(static_cast<double>(a.size(0, a.integer(1, 0))), a.max_abs(0)), a.nonnegative(0)};
}

}  // namespace

void add_reduction_rules(RuleTable& table) {
  table["sum"] = sum;
  table["mean"] = mean;
  for (const char* name : {"amax", "amin", "max", "min"}) table[name] = same_bound;
  table["cumsum"] = cumsum;
}

}  // namespace torchnan
