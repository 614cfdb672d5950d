// Sums of K products.
#include <cmath>

#include "bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;

// |sum over K of x y| <= K |x| |y|
double sum_of_products(A a, size_t x, size_t y, int64_t terms) {
  return kRoundedFactors * a.sum_of(static_cast<double>(terms), a.max_abs(x) * a.max_abs(y));
}

// mm, bmm: K is the last dimension of the first.
void mm(A a, Results out) { out[0] = {sum_of_products(a, 0, 1, a.size(0, -1))}; }

// beta c + alpha x y. What is multiplied by alpha differs from kernel to kernel: a factor, or the sum.
Bound scaled_sum(A a, int64_t terms) {
  const double alpha = a.magnitude(4, 1);
  const double x = a.max_abs(1);
  const double y = a.max_abs(2);
  const double on_the_way = largest({sum_of_products(a, 1, 2, terms), alpha * x, alpha * y});
  const double scaled = kRoundedFactors * a.sum_of(static_cast<double>(terms), product_of(a, alpha, x, y));
  return by_way_of(on_the_way, {a.magnitude(3, 1) * a.max_abs(0) + scaled});
}

// addmm(c, x, y, beta=1, alpha=1)
void addmm(A a, Results out) { out[0] = scaled_sum(a, a.size(1, -1)); }

// addbmm: the batch is summed too.
void addbmm(A a, Results out) { out[0] = scaled_sum(a, a.size(1, 0) * a.size(1, -1)); }

// addr(c, x, y, beta=1, alpha=1): an outer product.
void addr(A a, Results out) { out[0] = scaled_sum(a, 1); }

}  // namespace

void add_matmul_rules(RuleTable& table) {
  for (const char* name : {"mm", "bmm", "mv", "dot"}) table[name] = mm;
  for (const char* name : {"addmm", "baddbmm", "addmv", "_addmm_activation"}) table[name] = addmm;
  table["addbmm"] = addbmm;
  table["addr"] = addr;
}

}  // namespace torchnan
