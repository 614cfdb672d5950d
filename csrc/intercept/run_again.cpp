#include "intercept/run_again.h"

#include <exception>
#include <set>

#include <ATen/ops/nan_to_num.h>

#include "intercept/unseen_calls.h"
#include "check/operators/for_each_tensor.h"

namespace torchnan {

bool RunAgain::is_possible(const OpPlan& plan) {
  return plan.name.starts_with("aten::") && plan.mutated_arguments.empty() && !plan.draws_random_numbers &&
         !plan.pointwise && !plan.elementwise_in_self && !plan.is_data_movement;
}

// Empty if the kernel rejects them, or if not all could be replaced: those in a sparse tensor are not an argument.
std::vector<at::Tensor> RunAgain::results_with(double number, c10::ArrayRef<at::Tensor> nonfinite) const {
  const UnseenCalls unseen;
  std::vector<at::Tensor> results;
  try {
    torch::jit::Stack stack;
    std::set<const void*> wanted;
    for (const at::Tensor& one : nonfinite) wanted.insert(one.unsafeGetTensorImpl());
    std::set<const void*> missing = wanted;
    const auto finite = [&](const at::Tensor& tensor) {
      if (wanted.count(tensor.unsafeGetTensorImpl()) == 0) return tensor;
      missing.erase(tensor.unsafeGetTensorImpl());
      return at::nan_to_num(tensor, number, number, number);
    };
    for (const c10::IValue& argument : arguments_) stack.push_back(with_tensors(argument, finite));
    if (!missing.empty()) return {};
    op_.redispatchBoxed(below_.remove(c10::DispatchKey::Python), &stack);
    for (const uint16_t r : plan_.checked_returns) {
      for_each_tensor(stack[r], [&](const at::Tensor& tensor, int64_t) { results.push_back(tensor); });
    }
  } catch (const std::exception&) {
    return {};
  }
  return results;
}

}  // namespace torchnan
