// Sums of K products.
#include "check/bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;

// mm, bmm: K is the last dimension of the first.
void mm(A a, Results out) { out[0] = dot(a[0], a[1], static_cast<double>(a.size(0, -1))); }

// beta c + alpha x y. Kernels multiply either a factor or the sum by alpha; with alpha = 0, some leave c as it is
// (baddbmm in 16 bits, PyTorch 2.13).
Value scaled_sum(A a, int64_t terms, size_t beta = 3) {
  const auto k = static_cast<double>(terms);
  const Value alpha = a.scalar(beta + 1, 1);
  const Value added = a.scalar(beta, 1) * a[0];
  const Value c = alpha.min_abs > 0 ? added : either(added, a[0]);
  const Value product = dot(a[1], a[2], k);
  if (alpha.is_one()) return c + product;
  return c + either(alpha * product, dot(alpha * a[1], a[2], k), dot(a[1], alpha * a[2], k));
}

// addmm(c, x, y, beta=1, alpha=1), or addmm(c, x, y, out_dtype, beta=1, alpha=1)
void addmm(A a, Results out) { out[0] = scaled_sum(a, a.size(1, -1), a.size() == 6 ? 4 : 3); }

// _addmm_activation(c, x, y, beta=1, alpha=1, use_gelu=False): no activation enlarges |x|.
void addmm_activation(A a, Results out) { out[0] = scaled_sum(a, a.size(1, -1)); }

// addbmm: the batch is summed too.
void addbmm(A a, Results out) { out[0] = scaled_sum(a, a.size(1, 0) * a.size(1, -1)); }

// addr(c, x, y, beta=1, alpha=1): an outer product.
void addr(A a, Results out) { out[0] = scaled_sum(a, 1); }

}  // namespace

void add_matmul_rules(RuleTable& table) {
  for (const char* name : {"mm", "bmm", "mv", "dot"}) table[name] = mm;
  for (const char* name : {"addmm", "baddbmm", "addmv"}) table[name] = addmm;
  table["_addmm_activation"] = addmm_activation;
  table["addbmm"] = addbmm;
  table["addr"] = addr;
}

}  // namespace torchnan
