#include "report/hints/families.h"

#include "base/format.h"

#include <cstdint>
#include <string_view>

namespace torchnan {
namespace {

Hint hint_for_mean(const Operation& op) {
  const Argument x = op.self();
  if (!op.made_nan() || x.input == nullptr || x.size() > 0) return {};
  const bool is_median = op.name().find("median") != std::string_view::npos;
  return about(x, format_text("{} has no elements: {}", x.input->name,
                              is_median ? "their median is NaN" : "a mean over nothing is 0/0"));
}

Hint hint_for_variance(const Operation& op) {
  const Argument x = op.self();
  const int64_t results = count_elements(op.finding().shape);
  if (!x || !x.is_finite() || results == 0) return {};
  const double subtracted = op.number("correction", 1);
  const int64_t count = x.size() / results;
  if (static_cast<double>(count) > subtracted) return {};
  if (count == 1 && subtracted == 1) {
    return about(x, format_text("the variance of a single element of {}: the unbiased estimate divides by n - 1 = 0",
                                x.input->name));
  }
  return about(x, format_text("the variance of {} elements of {} with correction {:g}: it divides by 0", count,
                              x.input->name, subtracted));
}

}  // namespace

Hint hint_of_reductions(const Operation& op) {
  static constexpr OperatorRule kRules[] = {
      {"mean", hint_for_mean},
      {"nanmean", hint_for_mean},
      {"median", hint_for_mean},
      {"nanmedian", hint_for_mean},
      {"mse_loss", hint_for_mean},
      {"smooth_l1_loss", hint_for_mean},
      {"huber_loss", hint_for_mean},
      {"soft_margin_loss", hint_for_mean},
      {"multi_margin_loss", hint_for_mean},
      {"multilabel_margin_loss_forward", hint_for_mean},
      {"binary_cross_entropy", hint_for_mean},
      {"binary_cross_entropy_with_logits", hint_for_mean},
      {"var", hint_for_variance},
      {"std", hint_for_variance},
      {"var_mean", hint_for_variance},
      {"std_mean", hint_for_variance},
  };
  return hint_by_operator(kRules, op);
}

}  // namespace torchnan
