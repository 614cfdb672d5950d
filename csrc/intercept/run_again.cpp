#include "intercept/run_again.h"

#include <algorithm>
#include <exception>

#include <ATen/ops/nan_to_num.h>

#include "intercept/unseen_calls.h"
#include "operators/for_each_tensor.h"

namespace torchnan {

bool RunAgain::is_possible(const OpPlan& plan) {
  return plan.name.starts_with("aten::") && plan.mutated_arguments.empty() && !plan.draws_random_numbers &&
         !plan.pointwise && !plan.elementwise_in_self && !plan.is_data_movement;
}

// Adds the tensors that it replaces to `found`.
c10::IValue RunAgain::replaced(const c10::IValue& argument, double number, c10::ArrayRef<at::Tensor> nonfinite,
                               std::set<const void*>& found) const {
  if (argument.isTensor()) {
    const at::Tensor& tensor = argument.toTensor();
    const bool is_nonfinite =
        std::any_of(nonfinite.begin(), nonfinite.end(), [&](const at::Tensor& one) { return one.is_same(tensor); });
    if (!is_nonfinite) return argument;
    found.insert(tensor.unsafeGetTensorImpl());
    return at::nan_to_num(tensor, number, number, number);
  }
  if (!argument.isTensorList()) return argument;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : argument.toTensorVector())
    list.push_back(replaced(tensor, number, nonfinite, found).toTensor());
  return list;
}

// Empty if the kernel rejects them, or if not all could be replaced: those in a sparse tensor are not an argument.
std::vector<at::Tensor> RunAgain::results_with(double number, c10::ArrayRef<at::Tensor> nonfinite) const {
  const UnseenCalls unseen;
  std::vector<at::Tensor> results;
  try {
    torch::jit::Stack stack;
    std::set<const void*> found, wanted;
    for (const at::Tensor& one : nonfinite) wanted.insert(one.unsafeGetTensorImpl());
    for (const c10::IValue& argument : arguments_) stack.push_back(replaced(argument, number, nonfinite, found));
    if (found != wanted) return {};
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
