// Sums and extremes over dimensions.
#include "check/bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;

// Returns how many numbers f(x, dtype) or f(x, dims, keepdim, dtype) adds up; without dims, it reduces all dimensions.
double terms_of(A a) {
  const auto dims = a.size() < 4 ? c10::SmallVector<int64_t, 5>() : a.integers(1);
  if (dims.empty()) return static_cast<double>(a.numel(0));
  double terms = 1;
  for (const int64_t dim : dims) terms *= static_cast<double>(a.size(0, dim));
  return terms;
}

// ReduceOps.cpp, cpu/SumKernel.cpp
void total(A a, Results out) { out[0] = sum(a[0], terms_of(a)); }

// The mean of nothing is NaN.
void average(A a, Results out) {
  if (a.numel(0) != 0) out[0] = mean(a[0], terms_of(a));
}

// norm(x, order), linalg_vector_norm(x, order, dims, keepdim, dtype): only order 2. cpu/ReduceOpsKernel.cpp
void norm(A a, Results out) {
  if (a.number(1, 2) == 2) out[0] = sqrt(sum(square(a[0]), static_cast<double>(a.numel(0))));
}

// cumsum(x, dim)
void cumsum(A a, Results out) { out[0] = sum(a[0], static_cast<double>(a.size(0, a.integer(1, 0)))); }

}  // namespace

void add_reduction_rules(RuleTable& table) {
  table["sum"] = total;
  table["mean"] = average;
  for (const char* name : {"norm", "linalg_vector_norm"}) table[name] = norm;
  for (const char* name : {"amax", "amin", "max", "min"}) table[name] = same_bound;
  table["cumsum"] = cumsum;
}

}  // namespace torchnan
