#include "intercept/received_values.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "detection/error_containment.h"
#include "detection/thread_state.h"
#include "base/dispatch_key.h"
#include "check/operators/op_traits.h"

namespace torchnan {
namespace {

thread_local ReceivedValues* receiving = nullptr;

// Returns the index of the argument that names the process group; -1 if the operator is not a functional collective.
int64_t group_argument(const c10::OperatorHandle& op) {
  const std::string& name = op.operator_name().name;
  if (!name.starts_with("_c10d_functional::") && !name.starts_with("_dtensor::")) return -1;
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "group_name") return static_cast<int64_t>(i);
  }
  return -1;
}

// A backward pass may be compiled while it is run: the compiler's tensors have no values.
bool has_values(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.has_storage() && !tensor.key_set().has(c10::DispatchKey::Python);
}

bool is_same(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && a.const_data_ptr() == b.const_data_ptr() && a.nbytes() == b.nbytes();
}

}  // namespace

void ReceivedValues::run(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  const NoNestedCalls no_nested_calls;
  const int64_t argument = group_argument(op);
  std::string group;
  if (argument >= 0) {
    const c10::IValue& name = (*stack)[stack->size() - op.schema().arguments().size() + argument];
    if (name.isString()) group = name.toStringRef();
  }
  op.redispatchBoxed(below, stack);
  if (argument < 0 && !waits_for_collective(op.operator_name().name)) return;
  const bool is_kept = run_contained(*session_, "keeping what a collective of a compiled region brings", [&] {
    if (waits_for_collective(op.operator_name().name)) {
      complete(stack->back().toTensor());
    } else {
      add_results(op, group, *stack);
    }
  });
  if (!is_kept) pending_.assign(values_.size(), at::Tensor());
}

void ReceivedValues::clear() {
  values_.clear();
  pending_.clear();
  bytes_ = 0;
}

void ReceivedValues::add_results(const c10::OperatorHandle& op, const std::string& group,
                                 const torch::jit::Stack& stack) {
  const auto add = [&](const at::Tensor& result) {
    if (!has_values(result)) return;
    pending_.resize(values_.size());
    pending_.push_back(result);
    values_.push_back({op.operator_name().name, group, at::Tensor()});
  };
  const c10::IValue& results = stack.back();
  if (results.isTensor()) return add(results.toTensor());
  for (const at::Tensor& result : results.toTensorVector()) add(result);
}

// Generated code may compute in the memory of the result from now on.
void ReceivedValues::complete(const at::Tensor& awaited) {
  if (!has_values(awaited)) return;
  for (size_t i = pending_.size(); i-- > 0;) {
    if (!is_same(pending_[i], awaited)) continue;
    pending_[i].reset();
    bytes_ += static_cast<int64_t>(awaited.nbytes());
    if (!is_too_large()) {
      const at::NoGradGuard no_grad;
      values_[i].value = at::clone(awaited.detach(), at::MemoryFormat::Contiguous);
      return;
    }
    for (ReceivedValue& one : values_) one.value.reset();
    return;
  }
}

ReceivingValues::ReceivingValues(ReceivedValues& values, const DetectionSession& session)
    : outer_(receiving), values_(values) {
  values_.session_ = &session;
  ThreadState::current().suspend();
  receiving = &values_;
}

ReceivingValues::~ReceivingValues() {
  receiving = outer_;
  ThreadState::current().resume();
  values_.pending_.clear();
}

ReceivedValues* ReceivingValues::current() noexcept { return receiving; }

}  // namespace torchnan
