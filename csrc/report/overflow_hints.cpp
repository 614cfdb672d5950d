#include "report/hint_rules.h"
#include "base/format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torchnan {
namespace {

using namespace std::string_view_literals;

// -- functions of one argument

// The finite value with the largest result.
enum class Extreme { kMax, kMin, kAbsMax };

struct Growth {
  std::string_view op;
  Extreme extreme;
};

constexpr Growth kGrowths[] = {
    {"exp", Extreme::kMax},
    {"exp2", Extreme::kMax},
    {"expm1", Extreme::kMax},
    {"special_exp2", Extreme::kMax},
    {"special_expm1", Extreme::kMax},
    {"sinh", Extreme::kAbsMax},
    {"cosh", Extreme::kAbsMax},
    {"special_i0", Extreme::kAbsMax},
    {"i0", Extreme::kAbsMax},
    {"special_i1", Extreme::kAbsMax},
    {"special_modified_bessel_i0", Extreme::kAbsMax},
    {"special_modified_bessel_i1", Extreme::kAbsMax},
    {"special_erfcx", Extreme::kMin},
};

double extreme_of(const Argument& x, Extreme extreme) {
  if (extreme == Extreme::kMin) return x.min();
  return extreme == Extreme::kAbsMax && std::abs(x.min()) > std::abs(x.max()) ? x.min() : x.max();
}

Hint hint_for_growth(const Operation& op, const Growth& growth) {
  const Argument x = op.self();
  if (!op.made_inf() || x.input == nullptr) return {};
  if (x.is_overwritten()) {
    return about(x, format_text("{} of what {} held is more than {} can hold", growth.op, x.input->name, op.dtype()));
  }
  if (!x.has_range()) return {};
  return about(x, format_text("{} of {} is more than {} can hold{}", growth.op, x.quote(extreme_of(x, growth.extreme)),
                              op.dtype(), describe_growth(op)));
}

// -- arithmetic: with finite numbers it makes an Inf only by overflow

// Operators that round once: the result itself is too large.
constexpr std::array kOneRounding = {
    "add"sv,    "sub"sv,     "rsub"sv,  "mul"sv,   "_to_copy"sv, "copy"sv,
    "square"sv, "maximum"sv, "polar"sv, "hypot"sv, "rad2deg"sv,  "_prelu_kernel"sv,
};

// Operators that add products, so that an intermediate Inf may meet one of the other sign.
constexpr std::array kSums = {
    "sum"sv,
    "nansum"sv,
    "mean"sv,
    "cumsum"sv,
    "mm"sv,
    "bmm"sv,
    "addmm"sv,
    "addbmm"sv,
    "baddbmm"sv,
    "addmv"sv,
    "mv"sv,
    "dot"sv,
    "vdot"sv,
    "addr"sv,
    "linear"sv,
    "convolution"sv,
    "convolution_backward"sv,
    "mkldnn_convolution"sv,
    "_convolution"sv,
    "mkldnn_linear"sv,
    "_addmm_activation"sv,
    "_sparse_addmm"sv,
    "_sparse_mm"sv,
    "index_add"sv,
    "scatter_add"sv,
    "index_put"sv,
    "_index_put_impl"sv,
    "embedding_dense_backward"sv,
    "linalg_cross"sv,
    "linalg_matrix_exp"sv,
    "_linalg_det"sv,
    "_fft_r2c"sv,
    "_fft_c2c"sv,
    "_fft_c2r"sv,
    "avg_pool2d"sv,
    "avg_pool3d"sv,
    "_adaptive_avg_pool2d"sv,
    "_adaptive_avg_pool3d"sv,
    "embedding_bag"sv,
    "_embedding_bag"sv,
    "_embedding_bag_forward_only"sv,
    "var"sv,
    "std"sv,
    "var_mean"sv,
    "std_mean"sv,
    "_trilinear"sv,
    "native_group_norm_backward"sv,
    "native_layer_norm_backward"sv,
    "native_batch_norm_backward"sv,
    "_unsafe_masked_index_put_accumulate"sv,
    "linalg_householder_product"sv,
    "ormqr"sv,
    "trace"sv,
    "put"sv,
    "upsample_bicubic2d"sv,
    "_softmax_backward_data"sv,
    "_log_softmax_backward_data"sv,
    "_embedding_bag_backward"sv,
    "_embedding_bag_per_sample_weights_backward"sv,
    "_sparse_mm_reduce_impl_backward"sv,
};

// Operators in which an intermediate Inf may also meet a zero.
constexpr std::array kProducts = {
    "addcmul"sv,
    "ldexp"sv,
    "index_reduce"sv,
    "binary_cross_entropy_with_logits"sv,
    "soft_margin_loss_backward"sv,
    "grid_sampler_2d"sv,
    "grid_sampler_2d_backward"sv,
    "grid_sampler_3d"sv,
    "grid_sampler_3d_backward"sv,
    "gelu"sv,
    "gelu_backward"sv,
};

// The others.
constexpr std::array kSeveralRoundings = {
    "pow"sv,
    "prod"sv,
    "cumprod"sv,
    "lerp"sv,
    "addcdiv"sv,
    "dist"sv,
    "norm"sv,
    "linalg_vector_norm"sv,
    "mse_loss"sv,
    "huber_loss"sv,
    "smooth_l1_loss"sv,
    "soft_margin_loss"sv,
    "multi_margin_loss"sv,
    "multi_margin_loss_backward"sv,
    "multilabel_margin_loss_forward"sv,
    "nll_loss_forward"sv,
    "_cdist_forward"sv,
    "_euclidean_dist"sv,
    "_pdist_forward"sv,
    "scatter_reduce"sv,
    "trapezoid"sv,
    "logaddexp"sv,
    "_weight_norm_interface"sv,
    "native_group_norm"sv,
    "native_layer_norm"sv,
    "native_batch_norm"sv,
    "_native_batch_norm_legit"sv,
    "_native_batch_norm_legit_no_training"sv,
    "_batch_norm_with_update"sv,
    "mse_loss_backward"sv,
    "huber_loss_backward"sv,
    "smooth_l1_loss_backward"sv,
    "_histogramdd_bin_edges"sv,
    "hardswish"sv,
    "round"sv,
    "special_log_ndtr"sv,
    "_fused_adam"sv,
    "_fused_adamw"sv,
    "_fused_sgd"sv,
    "_fused_adagrad"sv,
};

template <typename Names>
bool contains(const Names& names, std::string_view op) {
  return std::find(names.begin(), names.end(), op) != names.end();
}

// Returns the relevant arguments, the most suspicious first.
std::vector<Argument> operands_of(const Operation& op) {
  std::vector<Argument> operands;
  for (const Argument& x : op.arguments()) {
    const bool is_float = x.input->dtype.find("int") == std::string::npos && x.input->dtype != "bool";
    if (x && is_float && x.absmax() > 0) operands.push_back(x);
  }
  std::stable_sort(operands.begin(), operands.end(), [](const Argument& a, const Argument& b) {
    return std::min(a.absmax(), 1e4) > std::min(b.absmax(), 1e4);
  });
  return operands;
}

std::string describe_operands(const std::vector<Argument>& operands) {
  std::vector<std::string> parts;
  for (const Argument& x : operands) {
    if (parts.size() == 4) break;
    const bool is_number = x.input->dtype == InputSummary::kNumber;
    parts.push_back(format_text("{} {}", x.input->name, is_number ? x.quote(x.min()) : x.reach()));
  }
  return parts.empty() ? "" : format_text(" ({})", join_text(parts, ", "));
}

// A weight that is this many times as large as before the first step has diverged.
constexpr double kGrown = 100;

Hint hint_for_largest_value(const Operation& op, const Argument& x) {
  const auto [extreme, sign] = x.is_below() ? std::pair("lowest", -1.0) : std::pair("largest", 1.0);
  return about(x, format_text("the {0} value, {1}, is beyond {2}, the {0} that {3} can hold", extreme,
                              x.quote(sign * x.absmax()), format_number(sign * largest_number(op.dtype()), op.dtype()),
                              op.dtype()));
}

bool is_arithmetic(std::string_view op) {
  const bool is_polynomial = op.find("_polynomial_") != std::string_view::npos;
  return is_polynomial || contains(kOneRounding, op) || contains(kSums, op) || contains(kProducts, op) ||
         contains(kSeveralRoundings, op);
}

// Whether overflow is the only way in which the operation can make such a value.
bool is_overflow(const Operation& op) {
  if (op.name() == "pow" && op.number("exponent", -1) < 0) return false;  // the power of a zero
  if (!op.made_nan()) {
    // An Inf counts as new even if an argument was overwritten and may have held others.
    const auto is_infinite = [](const Argument& x) { return x.input->tally.nonfinite() > 0; };
    const bool may_divide_by_zero = op.number("eps", 1) == 0;
    return op.made_inf() && !may_divide_by_zero &&
           std::none_of(op.arguments().begin(), op.arguments().end(), is_infinite);
  }
  return op.is_of_finite() && (contains(kSums, op.name()) || contains(kProducts, op.name()) || op.is_complex());
}

}  // namespace

std::string describe_growth(const Operation& op) {
  for (const Argument& x : op.arguments()) {
    const std::optional<double>& before = x.input->initial_absmax;
    if (!before) continue;
    if (x.is_overwritten()) {
      return format_text("; {} was up to {} at step {}", x.input->name, x.quote(*before), x.input->initial_step);
    }
    if (!x.tally().absmax || x.absmax() < kGrown * *before) continue;
    return format_text("; {} has grown from {} at step {}", x.input->name, x.quote(*before), x.input->initial_step);
  }
  return "";
}

Hint hint_for_overflow(const Operation& op) {
  const auto growth =
      std::find_if(std::begin(kGrowths), std::end(kGrowths), [&](const Growth& one) { return one.op == op.name(); });
  if (growth != std::end(kGrowths)) return hint_for_growth(op, *growth);
  if (op.arguments().empty() || !std::isfinite(largest_number(op.dtype())) || !is_arithmetic(op.name())) return {};
  const bool is_new = is_overflow(op);
  const std::vector<Argument> operands = operands_of(op);
  const bool is_beyond = !operands.empty() && operands[0].absmax() > largest_number(op.dtype());
  if (is_beyond && (is_new || op.is_of_finite())) return hint_for_largest_value(op, operands[0]);
  if (!is_new) return {};
  const bool is_result = contains(kOneRounding, op.name()) && !op.made_nan();
  std::string text = format_text("{} beyond {}, the largest that {} can hold{}",
                                 is_result ? "the result is" : "the result, or a value on the way to it, is",
                                 op.limit(), op.dtype(), describe_operands(operands));
  if (op.made_nan()) text += contains(kProducts, op.name()) ? ": inf - inf or 0 * inf is NaN" : ": inf - inf is NaN";
  text += describe_growth(op);
  return operands.empty() ? Hint{std::move(text)} : about(operands[0], std::move(text));
}

}  // namespace torchnan
