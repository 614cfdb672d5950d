#include "check/operators/op_traits.h"

#include <algorithm>
#include <array>

namespace torchnan {
namespace {

template <size_t N>
bool contains(const std::array<std::string_view, N>& names, std::string_view op) {
  return std::find(names.begin(), names.end(), op) != names.end();
}

using namespace std::string_view_literals;

constexpr std::array kUninitialized = {
    "empty"sv,
    "empty_like"sv,
    "empty_strided"sv,
    "empty_permuted"sv,
    "empty_quantized"sv,
    "new_empty"sv,
    "resize_"sv,
    "resize_as_"sv,
    "resize"sv,
    "resize_as"sv,
    "_resize_output_"sv,
    "set_"sv,
    "_unsafe_set_"sv,
    "_efficientzerotensor"sv,
    "new_empty_strided"sv,
    "_empty_affine_quantized"sv,
    "_empty_per_channel_affine_quantized"sv,
    "resize_as_sparse_"sv,
    "sparse_resize_"sv,
    "sparse_resize_and_clear_"sv,
    "_pin_memory"sv,
};

constexpr std::array kOverwritesFully = {
    "copy_"sv,       "fill_"sv,      "zero_"sv,          "normal_"sv,        "uniform_"sv,
    "random_"sv,     "bernoulli_"sv, "exponential_"sv,   "cauchy_"sv,        "geometric_"sv,
    "log_normal_"sv, "_copy_from"sv, "_foreach_copy_"sv, "_foreach_zero_"sv, "copy_sparse_to_sparse_"sv,
    "eye"sv,
};

constexpr std::array kPassthrough = {
    "lift"sv,       "lift_fresh"sv,       "lift_fresh_copy"sv, "clone"sv, "_to_copy"sv, "copy_"sv, "copy"sv,
    "_copy_from"sv, "_foreach_copy_"sv,   "_unsafe_view"sv,    "zero_"sv, "fill_"sv,    "set_"sv,  "resize_"sv,
    "index_put_"sv, "_index_put_impl_"sv,
};

constexpr std::array kAbsorbsNegativeInfinity = {
    "exp"sv,  "exp2"sv,  "expm1"sv, "sigmoid"sv,  "softplus"sv,  "_softmax"sv,  "_safe_softmax"sv, "_log_softmax"sv,
    "relu"sv, "relu_"sv, "exp_"sv,  "sigmoid_"sv, "logsumexp"sv, "logaddexp"sv, "logcumsumexp"sv,
};

constexpr std::array kNamespacesOfPyTorch = {
    "aten"sv,
    "prims"sv,
    "c10d"sv,
    "_c10d_functional"sv,
    "_c10d_functional_autograd"sv,
    "_dtensor"sv,
    "symm_mem"sv,
    "inductor"sv,
    "fsdp"sv,
    "quantized"sv,
    "mkldnn"sv,
    "profiler"sv,
    "rngprims"sv,
    "torchnan"sv,
};

constexpr std::array kComparisons = {
    "isnan"sv, "isinf"sv, "isposinf"sv, "isneginf"sv, "isfinite"sv, "isclose"sv, "allclose"sv, "equal"sv,
    "eq"sv,    "ne"sv,    "lt"sv,       "le"sv,       "gt"sv,       "ge"sv,      "signbit"sv,  "measure"sv,
};

constexpr std::array kOrderings = {
    "lt"sv,
    "le"sv,
    "gt"sv,
    "ge"sv,
};

// Their results say only how many NaN there are.
constexpr std::array kCounts = {
    "any"sv,
    "all"sv,
    "nonzero"sv,
    "nonzero_static"sv,
    "count_nonzero"sv,
    "is_nonzero"sv,
    "logical_and"sv,
    "logical_or"sv,
    "logical_xor"sv,
    "logical_not"sv,
    "unique_consecutive"sv,
    "unique_dim"sv,
    "_unique"sv,
    "_unique2"sv,
    "unique_dim_consecutive"sv,
};

constexpr std::array kSelectsByMask = {
    "where"sv,           "masked_fill"sv, "masked_fill_"sv, "masked_select"sv, "masked_scatter"sv,
    "masked_scatter_"sv, "index"sv,       "index_put"sv,    "index_put_"sv,    "_index_put_impl_"sv,
};

// Where a comparison or a cast decides, as in sign(NaN) = 0. Attention on the CPU returns 0 if all scores of a query
// are NaN and there are fewer keys than fit into a vector (PyTorch 2.13).
constexpr std::array kHidesNan = {
    "sign"sv,
    "sgn"sv,
    "heaviside"sv,
    "multi_margin_loss"sv,
    "multilabel_margin_loss_forward"sv,
    "grid_sampler_2d"sv,
    "grid_sampler_3d"sv,
    "fake_quantize_per_tensor_affine_cachemask"sv,
    "fake_quantize_per_channel_affine_cachemask"sv,
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams"sv,
    "_scaled_dot_product_flash_attention_for_cpu"sv,
};

constexpr std::array kReductions = {
    "sum"sv, "mean"sv, "prod"sv, "cumsum"sv,   "cumprod"sv, "amax"sv,   "amin"sv, "max"sv,
    "min"sv, "var"sv,  "std"sv,  "var_mean"sv, "median"sv,  "nansum"sv, "sort"sv, "topk"sv,
};

constexpr std::array kElementwiseInSelf = {
    "addmm"sv, "addmm_"sv, "baddbmm"sv, "baddbmm_"sv, "addbmm"sv, "addmv"sv, "addr"sv, "_addmm_activation"sv,
};

constexpr std::array kDataMovement = {
    "clone"sv,
    "_to_copy"sv,
    "copy_"sv,
    "copy"sv,
    "cat"sv,
    "stack"sv,
    "_cat"sv,
    "index"sv,
    "index_select"sv,
    "gather"sv,
    "take"sv,
    "masked_select"sv,
    "embedding"sv,
    "repeat"sv,
    "roll"sv,
    "flip"sv,
    "tril"sv,
    "triu"sv,
    "constant_pad_nd"sv,
    "expand_copy"sv,
    "view_copy"sv,
    "select_copy"sv,
    "slice_copy"sv,
    "permute_copy"sv,
    "t_copy"sv,
    "transpose_copy"sv,
    "_reshape_copy"sv,
    "_unsafe_view"sv,
    "lift_fresh"sv,
    "lift"sv,
    "lift_fresh_copy"sv,
    "index_put_"sv,
    "index_put"sv,
    "_index_put_impl_"sv,
    "masked_fill"sv,
    "masked_fill_"sv,
    "masked_scatter"sv,
    "masked_scatter_"sv,
    "where"sv,
    "scatter"sv,
    "scatter_"sv,
    "index_copy"sv,
    "index_copy_"sv,
    "index_fill"sv,
    "index_fill_"sv,
    "fill"sv,
    "fill_"sv,
    "full"sv,
    "full_like"sv,
    "new_full"sv,
    "scalar_tensor"sv,
    "fill_diagonal_"sv,
    "unbind_copy"sv,
    "split_copy"sv,
    "split_with_sizes_copy"sv,
    "all_gather_copy_in"sv,
    "slice_scatter"sv,
    "select_scatter"sv,
    "diagonal_scatter"sv,
    "as_strided_scatter"sv,
    "select_backward"sv,
    "slice_backward"sv,
    "alias_copy"sv,
    "detach_copy"sv,
    "unfold_copy"sv,
    "diagonal_copy"sv,
    "_foreach_copy_"sv,
    "put"sv,
    "put_"sv,
    "take_along_dim"sv,
    "sort"sv,
    "topk"sv,
    "_pad_enum"sv,
    "reflection_pad1d"sv,
    "reflection_pad2d"sv,
    "replication_pad1d"sv,
    "replication_pad2d"sv,
    "channel_shuffle"sv,
    "pixel_shuffle"sv,
    "pixel_unshuffle"sv,
    "_to_dense"sv,
    "complex"sv,
    "rot90"sv,
    "block_diag"sv,
};

constexpr std::array kConstantFactories = {
    "lift_fresh"sv, "scalar_tensor"sv, "full"sv, "full_like"sv, "new_full"sv, "fill_"sv, "fill"sv, "fill_diagonal_"sv,
};

// They update running statistics, which their schema does not declare.
constexpr std::array kBatchNorms = {
    "native_batch_norm"sv,
    "cudnn_batch_norm"sv,
    "miopen_batch_norm"sv,
    "batch_norm_update_stats"sv,
    "batch_norm_gather_stats"sv,  // of SyncBatchNorm, like the next: cuda/Normalization.cu
    "batch_norm_gather_stats_with_counts"sv,
};

// Their second output is the logarithm of a sum for each row, padded with +inf to a multiple of 32 rows.
constexpr std::array kAttentionWithPaddedLogSumExp = {
    "_scaled_dot_product_efficient_attention"sv,
    "_scaled_dot_product_flash_attention"sv,
    "_scaled_dot_product_cudnn_attention"sv,
    "_efficient_attention_forward"sv,
    "_flash_attention_forward"sv,
};

// The argument names of such an output in backward functions.
constexpr std::array kSavedForBackward = {"logsumexp"sv, "log_alpha"sv, "softmax_lse"sv};

// as_strided is left out: every other view calls it internally.
constexpr std::array kViewsWithArithmeticBackward = {"expand"sv, "unfold"sv};

}  // namespace

bool is_namespace_of_pytorch(std::string_view ns) { return contains(kNamespacesOfPyTorch, ns); }
bool returns_uninitialized(std::string_view op) { return contains(kUninitialized, op); }
bool returns_allocation(std::string_view op) {
  return op.find("empty") != std::string_view::npos || op.find("resize") != std::string_view::npos;
}
bool allocates(std::string_view op) { return returns_uninitialized(op) && op.find("empty") != std::string_view::npos; }
bool overwrites_fully(std::string_view op) { return contains(kOverwritesFully, op); }
bool reads_metadata_of_first(std::string_view op) {
  return op.ends_with("_like") || op.starts_with("new_") || op == "fill" || op == "copy";
}
bool is_data_movement(std::string_view op) { return contains(kDataMovement, op); }
bool is_passthrough(std::string_view op) { return contains(kPassthrough, op); }
bool absorbs_negative_infinity(std::string_view op) { return contains(kAbsorbsNegativeInfinity, op); }
bool is_comparison(std::string_view op) { return contains(kComparisons, op); }
bool is_ordering(std::string_view op) { return contains(kOrderings, op); }
bool looks_for_nan(std::string_view op) { return is_comparison(op) || contains(kCounts, op); }
bool selects_by_mask(std::string_view op) { return contains(kSelectsByMask, op); }
bool hides_nan(std::string_view op) { return contains(kHidesNan, op); }
bool is_reduction(std::string_view op) { return contains(kReductions, op); }
bool is_elementwise_in_self(std::string_view op) { return contains(kElementwiseInSelf, op); }
bool updates_statistics(std::string_view op) {
  return contains(kBatchNorms, op) || op == "_native_batch_norm_legit" || op == "_batch_norm_with_update";
}
bool mutates_undeclared_argument(std::string_view op, std::string_view argument) {
  return contains(kBatchNorms, op) && (argument == "running_mean" || argument == "running_var");
}
bool is_constant_factory(std::string_view op) { return contains(kConstantFactories, op); }
bool is_view_with_arithmetic_backward(std::string_view op) { return contains(kViewsWithArithmeticBackward, op); }
bool is_saved_for_backward(std::string_view op, size_t output) {
  return output == 1 && (op == "_ctc_loss" || contains(kAttentionWithPaddedLogSumExp, op));
}
bool is_unscanned_argument(std::string_view name, std::string_view argument) {
  if (contains(kSavedForBackward, argument)) return true;
  if (is_unwritten_argument(name, argument)) return true;
  if (name.rfind("c10d::", 0) != 0) return false;
  const std::string_view op = name.substr(6);
  const bool writes_every_tensor = op.rfind("recv", 0) == 0 || op.rfind("broadcast", 0) == 0;
  return argument.rfind("output", 0) == 0 || (writes_every_tensor && argument == "tensors");
}
bool is_unwritten_argument(std::string_view name, std::string_view argument) {
  return name == "fsdp::all_gather_copy_in" && argument == "all_gather_output";
}
bool waits_for_collective(std::string_view name) { return name == "_c10d_functional::wait_tensor"; }
CollectiveUse collective_use(std::string_view name, std::string_view argument) {
  const std::string_view op = name.substr(name.find("::") + 2);
  if (op == "barrier" || op == "monitored_barrier_" || argument == "sparse_indices") return CollectiveUse::kNone;
  if (op == "send" || op == "isend" || op == "check_for_nan") return CollectiveUse::kReads;
  const bool is_received = op.starts_with("recv") || op == "irecv" || op == "batch_p2p_ops";
  if (is_received || argument.starts_with("output") || argument == "out") return CollectiveUse::kWrites;
  const bool is_in_place = op.ends_with('_') && (!name.starts_with("c10d::") || !argument.starts_with("input"));
  return is_in_place ? CollectiveUse::kReadsAndWrites : CollectiveUse::kReads;
}
CollectiveTraits collective_traits(std::string_view name) {
  const auto has = [name](std::string_view part) { return name.find(part) != std::string_view::npos; };
  return {.is_broadcast = has("broadcast"),
          .is_reduction = has("reduce"),
          .is_reduce_scatter = has("reduce_scatter"),
          .is_gather = has("gather") || has("alltoall") || has("all_to_all"),
          .lists_ranks = has("alltoall_")};
}
bool is_unwritten_output(std::string_view name, size_t output) {
  return output == 1 && name == "fsdp::all_gather_copy_in";
}
bool asserts_finite(std::string_view name) {
  return name == "aten::multinomial" || name == "aten::binary_cross_entropy";
}
bool writes_groups_alone(std::string_view name) {
  return name == "aten::_grouped_mm" || name == "aten::_scaled_grouped_mm";
}
std::string_view producer_of_saved_argument(std::string_view op, std::string_view argument) {
  return op == "aten::_ctc_loss_backward" && argument == "log_alpha" ? "aten::_ctc_loss" : "";
}
bool tells_written_part(std::string_view op, std::string_view argument) {
  return op == "_ctc_loss_backward" && (argument == "input_lengths" || argument == "target_lengths");
}
bool proves_nonnegative_input(std::string_view op) { return op == "sqrt" || op == "_foreach_sqrt"; }
bool reads_scalar_to_host(std::string_view op) { return op == "_local_scalar_dense"; }
bool is_grad_scaler_check(std::string_view op) { return op == "_amp_foreach_non_finite_check_and_unscale_"; }
bool is_foreach_elementwise(std::string_view op) {
  const auto is = [&](std::string_view family) { return op.rfind(family, 0) == 0; };
  return is("_foreach_") || is("_fused_ada") || is("_fused_sgd") || is_grad_scaler_check(op);
}
bool is_async_collective(std::string_view ns, std::string_view op) {
  const bool is_functional = ns == "_c10d_functional" && op != "wait_tensor" && op != "_wrap_tensor_autograd";
  return ns == "c10d" || is_functional || op == "shard_dim_alltoall";
}

}  // namespace torchnan
