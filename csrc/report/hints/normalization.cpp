#include "report/hints/families.h"

#include "base/format.h"

#include <cmath>
#include <string_view>

namespace torchnan {
namespace {

// Half precision is normalized in float32.
std::string_view computation_dtype(const Operation& op) {
  return op.dtype() == "float16" || op.dtype() == "bfloat16" ? "float32" : std::string_view(op.dtype());
}

// Whether the normalized value may overflow when it is scaled: before that, it is at most the root of the count.
bool may_overflow_in_scaling(const Operation& op, const Argument& x) {
  const Argument weight = op.argument("weight");
  const double scale = weight ? weight.absmax() : 1;
  const double largest = scale * std::sqrt(static_cast<double>(x.size())) + op.argument("bias").absmax();
  return largest >= largest_number(op.dtype());
}

Hint hint_for_running_variance(const Operation& op, const Argument& variance) {
  if (!variance.has_range() || !op.made_nan()) return {};
  const double eps = op.number("eps", 0);
  if (variance.min() + eps < 0) {
    return about(variance, format_text("running_var holds negative values (down to {}): their square root is NaN",
                                       variance.quote(variance.min())));
  }
  if (eps != 0 || !variance.holds_zeros() || !op.is_of_finite()) return {};
  return about(variance, "running_var holds zeros, and eps is 0: 0/0 is NaN");
}

Hint hint_for_normalization(const Operation& op) {
  const Argument variance = op.argument("running_var");
  if (variance) return hint_for_running_variance(op, variance);  // otherwise it was written: training
  const Argument x = op.self();
  const Argument eps = op.argument("eps");
  if (eps.has_range() && eps.min() < 0) return {};  // either the root of a small variance, or a large variance
  if (!x.is_finite() || !x.tally().absmax || may_overflow_in_scaling(op, x)) return {};
  const double limit = largest_number(computation_dtype(op));
  const double squares = x.absmax() * x.absmax() * static_cast<double>(x.size());
  const bool has_no_eps = eps.has_range() && eps.min() == 0;
  if (squares > limit) {
    if (has_no_eps) return {};  // either is possible
    return about(x, format_text("{} {}: its variance is beyond {}, the largest that {} can hold", x.input->name,
                                x.reach(), format_number(limit, computation_dtype(op)), computation_dtype(op)));
  }
  if (!has_no_eps) return {};
  return about(eps, format_text("eps is 0, and the {} of a row of {} is 0: {}",
                                op.name() == "_fused_rms_norm" ? "mean square" : "variance", x.input->name,
                                op.made_nan() ? "0/0 is NaN" : "x/0 is inf"));
}

// It divides by the saved values of the forward pass. In evaluation there are none, and the running statistics are
// used.
Hint hint_for_batch_norm_backward(const Operation& op) {
  const Argument saved = op.argument("save_invstd");
  if (saved && saved.size() > 0) return {};
  return hint_for_running_variance(op, op.argument("running_var"));
}

// The weight is divided by the norms of its slices.
Hint hint_for_weight_norm(const Operation& op) {
  const Argument v = op.argument("v");
  if (!op.made_nan() || !op.is_of_finite() || !v) return {};
  return about(v, "the norm of a slice of v is 0: 0/0 is NaN");
}

}  // namespace

Hint hint_of_normalization(const Operation& op) {
  static constexpr OperatorRule kRules[] = {
      {"native_layer_norm", hint_for_normalization},
      {"native_group_norm", hint_for_normalization},
      {"native_batch_norm", hint_for_normalization},
      {"_native_batch_norm_legit", hint_for_normalization},
      {"_native_batch_norm_legit_no_training", hint_for_normalization},
      {"_batch_norm_with_update", hint_for_normalization},
      {"_batch_norm_no_update", hint_for_normalization},
      {"cudnn_batch_norm", hint_for_normalization},
      {"_fused_rms_norm", hint_for_normalization},
      {"native_batch_norm_backward", hint_for_batch_norm_backward},
      {"_weight_norm_interface", hint_for_weight_norm},
  };
  return hint_by_operator(kRules, op);
}

}  // namespace torchnan
