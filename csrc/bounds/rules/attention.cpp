// Scaled dot-product attention in one kernel.
#include <algorithm>
#include <cmath>

#include "bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;

constexpr const char* kForward = "aten::_scaled_dot_product_flash_attention_for_cpu";

double scale_of(A a, size_t scale, size_t query) {
  const double usual = 1 / std::sqrt(std::max<double>(1, static_cast<double>(a.size(query, -1))));
  return a.magnitude(scale, usual);
}

// |q k| over E elements.
double max_product(A a, size_t query, size_t key) {
  return kRoundedFactors * a.sum_of(static_cast<double>(a.size(query, -1)), a.max_abs(query) * a.max_abs(key));
}

// |q k scale|, and q k on the way.
double max_score(A a, size_t query, size_t key, size_t scale) {
  return max_product(a, query, key) * largest({1, scale_of(a, scale, query)});
}

// (query, key, value, dropout_p, is_causal, attn_mask, scale): a mean of values, weighted by a softmax of finite
// scores, which is divided by its sum last; and the log of the sum of their exponentials.
void flash_attention(A a, Results out) {
  const double score = max_score(a, 0, 1, 6) + a.max_abs(5);
  if (!(score < a.limit()) || a.size(1, -2) == 0) return;
  const double weighted = a.sum_of(static_cast<double>(a.size(1, -2)), a.max_abs(2));
  out[0] = by_way_of(weighted, {a.sum_of(2, a.max_abs(2))});
  out[1] = {score + std::log(static_cast<double>(a.size(1, -2)) + 1)};
}

// The backward pass computes the scores again and takes p = e^(score - logsumexp), which is at most one, and whose rows
// add up to one, but for the roundings of scores and logarithm: of large scores they are large numbers, and p
// overflows.
double max_excess(A a) {
  const double score = max_product(a, 1, 2) * scale_of(a, 9, 1) + a.max_abs(8);
  const double each = 2 * static_cast<double>(a.size(1, -1)) + 8;
  const double keys = static_cast<double>(a.size(2, -2)) + 16;
  return std::exp(a.epsilon() * (each * score + keys));
}

// (g, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask, scale). To value, a sum over queries of p g;
// ds = p (g value - g out), a sum over E each; to query and key, sums of ds key and ds query, with the scale.
void flash_attention_backward(A a, Results out) {
  constexpr double kUseful = 0x1p20;  // of a larger bound nothing could be concluded
  if (!a.produced_by(4, kForward) || !a.produced_by(5, kForward)) return;
  const double excess = max_excess(a);
  if (!(excess < kUseful && max_score(a, 1, 2, 9) + a.max_abs(8) < a.limit())) return;
  const double g = excess * a.max_abs(0);
  const double queries = static_cast<double>(a.size(1, -2));
  const double per_score = a.sum_of(static_cast<double>(a.size(1, -1)), g * (a.max_abs(3) + a.max_abs(4)));
  const double scale = largest({1, scale_of(a, 9, 1)});
  out[0] = by_way_of(per_score * scale, {a.sum_of(2, per_score * a.max_abs(2)) * scale});
  out[1] = by_way_of(per_score * scale, {a.sum_of(queries, per_score * a.max_abs(1)) * scale});
  out[2] = {a.sum_of(queries, g)};
}

}  // namespace

void add_attention_rules(RuleTable& table) {
  table["_scaled_dot_product_flash_attention_for_cpu"] = flash_attention;
  table["_scaled_dot_product_flash_attention_for_cpu_backward"] = flash_attention_backward;
}

}  // namespace torchnan
