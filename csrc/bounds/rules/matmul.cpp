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

// addmm(c, x, y, beta=1, alpha=1): beta c + alpha x y
void addmm(A a, Results out) {
  const double alpha = std::abs(a.number(4, 1));
  out[0] = {std::abs(a.number(3, 1)) * a.max_abs(0) + alpha * sum_of_products(a, 1, 2, a.size(1, -1))};
}

// addbmm: the batch is summed too.
void addbmm(A a, Results out) {
  const double alpha = std::abs(a.number(4, 1));
  out[0] = {std::abs(a.number(3, 1)) * a.max_abs(0) + alpha * sum_of_products(a, 1, 2, a.size(1, 0) * a.size(1, -1))};
}

// addr(c, x, y, beta=1, alpha=1): an outer product.
void addr(A a, Results out) {
  out[0] = {std::abs(a.number(3, 1)) * a.max_abs(0) + std::abs(a.number(4, 1)) * a.max_abs(1) * a.max_abs(2)};
}

}  // namespace

void add_matmul_rules(RuleTable& table) {
  for (const char* name : {"mm", "bmm", "mv", "dot"}) table[name] = mm;
  for (const char* name : {"addmm", "baddbmm", "addmv", "_addmm_activation"}) table[name] = addmm;
  table["addbmm"] = addbmm;
  table["addr"] = addr;
}

}  // namespace torchnan
