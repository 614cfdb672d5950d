#include "intercept/typed_ops.h"

#include <optional>

#include <ATen/ops/_local_scalar_dense_ops.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bernoulli_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/convolution_backward_ops.h>
#include <ATen/ops/convolution_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/empty_like_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/select_backward_ops.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>

#include "intercept/register_typed.h"

namespace torchnan {
namespace {

// A cast. A copy to another device or layout is boxed.
struct TypedCast {
  using Op = at::_ops::_to_copy;

  static at::Tensor run(c10::DispatchKeySet keys, const at::Tensor& self, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout> layout, std::optional<at::Device> device,
                        std::optional<bool> pin_memory, bool non_blocking,
                        std::optional<at::MemoryFormat> memory_format) {
    const bool stays = !layout && (!device || *device == self.device());
    const auto run = stays ? &TypedCall<Op, LargeCalls::kTyped>::run : &TypedCall<Op, LargeCalls::kBoxed>::run;
    return run(keys, self, dtype, layout, device, pin_memory, non_blocking, memory_format);
  }
};

}  // namespace

// The operators that whole training steps of small models call most often; others are not worth their compile time.
void intercept_hot_operators_typed(torch::Library& aten) {
  namespace ops = at::_ops;
  intercept_typed<LargeCalls::kTyped, ops::mm, ops::addmm, ops::bmm, ops::convolution, ops::convolution_backward,
                  ops::embedding, ops::embedding_dense_backward>(aten);
  intercept_typed<LargeCalls::kTyped, ops::add_Tensor, ops::add__Tensor, ops::sub_Tensor, ops::sub__Tensor,
                  ops::mul_Tensor, ops::mul__Tensor, ops::mul_Scalar, ops::mul__Scalar, ops::div_Tensor,
                  ops::div__Tensor, ops::div_Scalar, ops::div__Scalar, ops::neg, ops::exp, ops::pow_Tensor_Scalar,
                  ops::sqrt, ops::rsqrt>(aten);
  intercept_typed<LargeCalls::kTyped, ops::sum, ops::sum_dim_IntList, ops::mean, ops::mean_dim, ops::clone, ops::copy_,
                  ops::select_backward, ops::_local_scalar_dense, ops::empty_like, ops::bernoulli__float>(aten);
  intercept_typed<LargeCalls::kTyped, ops::tanh, ops::tanh_backward, ops::sigmoid, ops::sigmoid_backward, ops::relu,
                  ops::relu_, ops::threshold_backward, ops::gelu, ops::gelu_backward, ops::silu, ops::silu_backward>(
      aten);
  intercept_typed<LargeCalls::kTyped, ops::_softmax, ops::_softmax_backward_data, ops::_log_softmax,
                  ops::_log_softmax_backward_data>(aten);
  intercept_typed<LargeCalls::kTyped, ops::native_layer_norm, ops::native_layer_norm_backward,
                  ops::native_batch_norm_backward>(aten);
  register_typed<ops::expand, TypedView<ops::expand>>(aten);
  TypedCall<ops::_to_copy, LargeCalls::kTyped>::find_operator();
  TypedCall<ops::_to_copy, LargeCalls::kBoxed>::find_operator();
  register_typed<ops::_to_copy, TypedCast>(aten);
  intercept_typed<LargeCalls::kTyped, ops::lerp__Scalar, ops::addcmul_, ops::addcdiv_>(aten);
}

}  // namespace torchnan
