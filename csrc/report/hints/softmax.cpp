#include "report/hints/families.h"

#include "base/format.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace torchnan {
namespace {

// A softmax of finite numbers and -inf is NaN only in rows that are -inf everywhere. Its logarithm also has -inf
// elsewhere.
Hint hint_for_softmax(const Operation& op) {
  const Argument x = op.self();
  if (!x || x.tally().nan > 0) return {};
  if (!op.made_nan()) {
    if (!op.made_inf() || !x.is_finite() || !x.has_range()) return {};
    return about(x, format_text("{} from {} to {}: their difference is beyond {}, the largest that {} can hold",
                                x.input->name, x.quote(x.min()), x.quote(x.max()), op.limit(), op.dtype()));
  }
  if (x.tally().posinf > 0) return about(x, format_text("{} holds +inf: inf - inf is NaN", x.input->name));
  if (x.tally().neginf == 0) return {};
  const std::string row = op.infinities() == 0 ? format_text("the row of {} at [{}]", x.input->name,
                                                             join_text(op.finding().first_index, ","))
                                               : format_text("a row of {}", x.input->name);
  return about(x, format_text("{} is -inf everywhere: softmax of a fully masked row is 0/0", row));
}

// Finite queries and keys make a NaN only if their products overflow or the mask excludes a whole row.
Hint hint_for_attention(const Operation& op) {
  Argument mask = op.argument("attn_mask");
  if (mask.input == nullptr) mask = op.argument("attn_bias");
  const bool is_float_mask = mask && mask.tally().neginf > 0 && mask.tally().nan == 0 && mask.tally().posinf == 0;
  const bool is_bool_mask = mask && mask.input->dtype == "bool" && mask.tally().zeros > 0;
  const Argument query = op.argument("query");
  const Argument key = op.argument("key");
  if (!op.made_nan() || !query.is_finite() || !key.is_finite() || !op.argument("value").is_finite()) return {};
  if (query.input->shape.empty()) return {};
  const double scale = std::max(1.0, std::abs(op.number("scale", 1)));
  const double product = query.absmax() * key.absmax() * scale * static_cast<double>(query.input->shape.back());
  const bool may_overflow = product >= largest_number(op.dtype());
  const std::string overflow =
      format_text("query {} and key {}: their products are beyond {}, the largest that {} can hold", query.reach(),
                  key.reach(), op.limit(), op.dtype());
  if (!is_float_mask && !is_bool_mask) return may_overflow ? about(query, overflow) : Hint{};
  const std::string masked = format_text("a row of {} is {} everywhere: softmax of a fully masked row is 0/0",
                                         mask.input->name, is_float_mask ? "-inf" : "False");
  return may_overflow ? about(query, format_text("either {}, or {}", overflow, masked)) : about(mask, masked);
}

}  // namespace

Hint hint_of_softmax(const Operation& op) {
  static constexpr OperatorRule kRules[] = {
      {"_softmax", hint_for_softmax},
      {"_log_softmax", hint_for_softmax},
      {"softmax", hint_for_softmax},
      {"log_softmax", hint_for_softmax},
      {"_scaled_dot_product_flash_attention_for_cpu", hint_for_attention},
      {"_scaled_dot_product_flash_attention", hint_for_attention},
      {"_scaled_dot_product_efficient_attention", hint_for_attention},
      {"_scaled_dot_product_cudnn_attention", hint_for_attention},
  };
  return hint_by_operator(kRules, op);
}

}  // namespace torchnan
