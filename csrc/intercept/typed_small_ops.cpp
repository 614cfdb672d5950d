#include "intercept/typed_ops.h"

#include <ATen/ops/_is_all_true_ops.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/all_ops.h>
#include <ATen/ops/amax_ops.h>
#include <ATen/ops/any_ops.h>
#include <ATen/ops/argmax_ops.h>
#include <ATen/ops/bitwise_and_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/clamp_min_ops.h>
#include <ATen/ops/clamp_ops.h>
#include <ATen/ops/cos_ops.h>
#include <ATen/ops/cumsum_ops.h>
#include <ATen/ops/dot_ops.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/full_like_ops.h>
#include <ATen/ops/full_ops.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/index_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/le_ops.h>
#include <ATen/ops/leaky_relu_ops.h>
#include <ATen/ops/lift_fresh_ops.h>
#include <ATen/ops/linalg_vector_norm_ops.h>
#include <ATen/ops/log1p_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/logical_not_ops.h>
#include <ATen/ops/logsumexp_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/max_ops.h>
#include <ATen/ops/maximum_ops.h>
#include <ATen/ops/min_ops.h>
#include <ATen/ops/minimum_ops.h>
#include <ATen/ops/mse_loss_backward_ops.h>
#include <ATen/ops/mse_loss_ops.h>
#include <ATen/ops/multinomial_ops.h>
#include <ATen/ops/mv_ops.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/new_zeros_ops.h>
#include <ATen/ops/nll_loss_backward_ops.h>
#include <ATen/ops/nll_loss_forward_ops.h>
#include <ATen/ops/normal_ops.h>
#include <ATen/ops/ones_like_ops.h>
#include <ATen/ops/ones_ops.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/remainder_ops.h>
#include <ATen/ops/scalar_tensor_ops.h>
#include <ATen/ops/scatter_add_ops.h>
#include <ATen/ops/sin_ops.h>
#include <ATen/ops/slice_backward_ops.h>
#include <ATen/ops/softplus_ops.h>
#include <ATen/ops/stack_ops.h>
#include <ATen/ops/std_ops.h>
#include <ATen/ops/uniform_ops.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zero_ops.h>
#include <ATen/ops/zeros_like_ops.h>
#include <ATen/ops/zeros_ops.h>

#include "intercept/register_typed.h"

namespace torchnan {

// The operators that programs of many small operations call most often: policies that act step by step, distributions,
// routers, samplers. `python -m benchmarks.operators` counts them.
void intercept_small_operators_typed(torch::Library& aten) {
  namespace ops = at::_ops;
  intercept_typed<LargeCalls::kBoxed, ops::eq_Scalar, ops::eq_Tensor, ops::ne_Scalar, ops::ne_Tensor, ops::ge_Scalar,
                  ops::ge_Tensor, ops::gt_Scalar, ops::gt_Tensor, ops::le_Scalar, ops::le_Tensor, ops::lt_Scalar,
                  ops::lt_Tensor, ops::bitwise_and_Tensor, ops::logical_not, ops::_is_all_true, ops::all, ops::all_dim,
                  ops::any, ops::argmax>(aten);
  intercept_typed<LargeCalls::kBoxed, ops::abs, ops::clamp, ops::clamp_min, ops::log, ops::log1p, ops::sin, ops::cos,
                  ops::reciprocal, ops::remainder_Scalar, ops::maximum, ops::minimum, ops::where_self,
                  ops::masked_fill_Scalar, ops::leaky_relu, ops::softplus, ops::mv, ops::dot>(aten);
  intercept_typed<LargeCalls::kBoxed, ops::max, ops::min, ops::max_dim, ops::amax, ops::logsumexp, ops::cumsum,
                  ops::std_correction, ops::linalg_vector_norm>(aten);
  intercept_typed<LargeCalls::kBoxed, ops::cat, ops::stack, ops::gather, ops::scatter_add, ops::index_Tensor,
                  ops::index_select, ops::slice_backward, ops::lift_fresh, ops::zero_, ops::fill__Scalar>(aten);
  intercept_typed<LargeCalls::kBoxed, ops::nll_loss_forward, ops::nll_loss_backward, ops::mse_loss,
                  ops::mse_loss_backward>(aten);
  intercept_typed<LargeCalls::kBoxed, ops::zeros, ops::zeros_like, ops::new_zeros, ops::ones, ops::ones_like, ops::full,
                  ops::full_like, ops::scalar_tensor>(aten);
  intercept_typed<LargeCalls::kBoxed, ops::multinomial, ops::normal_, ops::uniform_>(aten);
}

}  // namespace torchnan
