// Sums and extremes over dimensions.
#include "bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;

// f(x, dtype), or f(x, dims, keepdim, dtype) where no dims are all dims: how many numbers are added up.
double terms_of(A a) {
  const auto dims = a.size() < 4 ? c10::SmallVector<int64_t, 5>() : a.integers(1);
  if (dims.empty()) return static_cast<double>(a.numel(0));
  double terms = 1;
  for (const int64_t dim : dims) terms *= static_cast<double>(a.size(0, dim));
  return terms;
}

void sum(A a, Results out) { out[0] = {a.sum_of(terms_of(a), a.max_abs(0)), a.nonnegative(0)}; }

// Of nothing it is NaN.
void mean(A a, Results out) {
  if (a.numel(0) != 0) out[0] = mean_of(a, terms_of(a), a.max_abs(0), a.nonnegative(0));
}

// norm(x, order), linalg_vector_norm(x, order, dims, keepdim, dtype): that of order 2.
void norm(A a, Results out) {
  if (a.number(1, 2) != 2) return;
  const double terms = a.sum_of(static_cast<double>(a.numel(0)), 1);
  out[0] = by_way_of(terms * a.max_abs(0) * a.max_abs(0), {std::sqrt(terms) * a.max_abs(0), true});
}

// cumsum(x, dim)
void cumsum(A a, Results out) {
  out[0] = {a.sum_of(static_cast<double>(a.size(0, a.integer(1, 0))), a.max_abs(0)), a.nonnegative(0)};
}

}  // namespace

void add_reduction_rules(RuleTable& table) {
  table["sum"] = sum;
  table["mean"] = mean;
  for (const char* name : {"norm", "linalg_vector_norm"}) table[name] = norm;
  for (const char* name : {"amax", "amin", "max", "min"}) table[name] = same_bound;
  table["cumsum"] = cumsum;
}

}  // namespace torchnan
