// Scaled dot-product attention in one kernel.
#include <algorithm>
#include <atomic>
#include <cmath>

#include <ATen/Context.h>

#include "check/bounds/rules.h"

namespace torchnan {
namespace {

using A = const RuleArguments&;

constexpr const char* kForward = "aten::_scaled_dot_product_flash_attention_for_cpu";

// Whether a setting lets kernels of the host round the factors of matrix products of float32, or did so at an earlier
// call of attention in this process.
bool may_round_factors() {
  static std::atomic<bool> was_allowed{false};
  const at::Float32Precision precision =
      at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  const bool is_allowed = precision == at::Float32Precision::BF16 || precision == at::Float32Precision::TF32;
  if (is_allowed) was_allowed.store(true, std::memory_order_relaxed);
  return was_allowed.load(std::memory_order_relaxed);
}

// The kernel assumes that the elements of a row are adjacent in memory. If they are not, it reads whatever lies there
// (PyTorch 2.13).
bool have_dense_rows(A a, std::initializer_list<size_t> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&a](size_t i) {
    const at::Tensor* tensor = a.tensor(i);
    return tensor != nullptr && tensor->dim() > 0 && (tensor->stride(-1) == 1 || tensor->size(-1) == 1);
  });
}

Value scale_of(A a, size_t scale, size_t query) {
  return a.scalar(scale, 1 / std::sqrt(std::max<double>(1, static_cast<double>(a.size(query, -1)))));
}

// q k scale + mask, over E elements.
Value score_of(A a, size_t query, size_t key, size_t scale, size_t mask) {
  const Value score = dot(a[query], a[key], static_cast<double>(a.size(query, -1))) * scale_of(a, scale, query);
  return a.has_value(mask) ? score + a[mask] : score;
}

// Whether a causal mask stays -inf: the kernel applies it before it multiplies by the scale.
bool keeps_causal_mask(A a, size_t is_causal, size_t scale, size_t query) {
  return !a.flag(is_causal) || scale_of(a, scale, query).is_positive();
}

// A weight of a softmax: e^(score - largest score).
Value probability(A a) { return {.max_abs = 1, .nonnegative = true, .in = &a.range()}; }

// (query, key, value, dropout_p, is_causal, attn_mask, scale): an average of values, weighted by a softmax of finite
// scores, which is divided by its sum at the end; and the log of the sum of their exponentials. Weights and values are
// factors of a matrix product, but the sum of the weights is that of the unrounded ones. cpu/FlashAttentionKernel.cpp
void flash_attention(A a, Results out) {
  may_round_factors();
  const Value score = score_of(a, 0, 1, 6, 5);
  if (!score.known() || score.masked || a.size(1, -2) == 0) return;
  if (!have_dense_rows(a, {0, 1, 2}) || !keeps_causal_mask(a, 4, 6, 0)) return;
  const auto keys = static_cast<double>(a.size(1, -2));
  Value weighted = dot(probability(a), a[2], keys);
  weighted.error = 0;  // the roundings belong to the average, which each of them enlarges in proportion
  const double factors = as_factor(probability(a)).max_abs * as_factor(a[2]).max_abs;
  out[0] = at_most(factors * growth_of_sum(2 * keys + 2, a.range()), weighted);
  out[1] = score + exactly(std::log(keys + 1));
}

// The backward pass computes the scores again and takes p = e^(score - logsumexp). Each p is at most one and each row
// adds up to one, except for the roundings of scores and logarithm. For large scores these roundings are large, and p
// overflows. If a setting lets a kernel round factors to a narrower type, one of the two passes may do so without the
// other: settings change, and only large products are computed that way.
double max_excess(A a) {
  const Value score = score_of(a, 1, 2, 9, 8);
  if (score.masked) return Value::kUnknown;
  const double each = 2 * static_cast<double>(a.size(1, -1)) + 8;
  const double keys = static_cast<double>(a.size(2, -2)) + 16;
  const double rounded = may_round_factors() ? 2 * (1 + kFactorRange.unit) * kFactorRange.unit * score.max_abs : 0;
  return std::exp(a.sums().unit * (each * score.max_abs + keys) + rounded);
}

// (g, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask, scale). The gradient of value is a sum over
// queries of p g. ds = p (g value - g out) has a sum over E in each term. The gradients of query and key are sums of ds
// key and ds query, times the scale.
void flash_attention_backward(A a, Results out) {
  constexpr double kUseful = 0x1p20;  // a larger bound would prove nothing
  if (!a.describes(4, kForward, {1, 2}) || !a.describes(5, kForward, {1, 2}) || !have_dense_rows(a, {0, 1, 2, 3, 4}) ||
      !keeps_causal_mask(a, 7, 9, 1))
    return;
  const double excess = max_excess(a);
  if (!(excess < kUseful)) return;
  Value g = a[0];
  g.max_abs *= excess;
  const Value to_score =
      dot(g, a[3], static_cast<double>(a.size(1, -1))) + dot(g, a[4], static_cast<double>(a.size(1, -1)));
  const Value scale = scale_of(a, 9, 1);
  const auto queries = static_cast<double>(a.size(1, -2));
  out[0] = either(dot(to_score, a[2], 2) * scale, dot(to_score * scale, a[2], 2));
  out[1] = either(dot(to_score, a[1], queries) * scale, dot(to_score * scale, a[1], queries));
  out[2] = dot(probability(a), g, queries);
}

}  // namespace

void add_attention_rules(RuleTable& table) {
  table["_scaled_dot_product_flash_attention_for_cpu"] = flash_attention;
  table["_scaled_dot_product_flash_attention_for_cpu_backward"] = flash_attention_backward;
}

}  // namespace torchnan
