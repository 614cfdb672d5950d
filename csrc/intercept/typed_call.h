// An intercepted call without boxing: for the operators that a launch-bound program spends its time on.
//
// Boxing turns every argument into an IValue and back, twice; that is most of what interception costs. Here arguments
// stay what they are. As soon as there is anything to explain, the call is boxed after all and goes the one way that
// knows how.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <tuple>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/impl/boxing.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "bounds/operand.h"
#include "intercept/dispatch_key.h"
#include "intercept/fallback.h"
#include "intercept/op_plan.h"
#include "intercept/result_check.h"

namespace torchnan {

// The part that does not depend on the operator's type. Lives on the stack of the call.
class PlainCall {
 public:
  explicit PlainCall(const OpPlan& plan) : plan_(plan), thread_(ThreadState::here()), watch_(thread_.watch()) {}

  // Whether there is nothing to explain: no argument is known to be bad, and what is overwritten is known not to be.
  bool begins(c10::ArrayRef<Operand> arguments);

  // Judges the results, tensors in the order of the schema; false if something is not finite.
  bool ends_well(c10::ArrayRef<const at::Tensor*> results, const at::Tensor* first_argument);

  // It has failed, or is to be explained: what it wrote is not known.
  void forget(c10::ArrayRef<Operand> arguments);

  // Explains what the call has written, from its boxed arguments and results.
  void explain(const c10::OperatorHandle& op, torch::jit::Stack arguments, torch::jit::Stack results);

 private:
  const OpPlan& plan_;
  ThreadState& thread_;
  Watch* const watch_;
  std::optional<ResultCheck> check_;
};

// `Op` is one of PyTorch's own: at::_ops::mm.
template <typename Op, typename Signature = typename Op::schema>
struct TypedCall;

template <typename Op, typename Result, typename... Arguments>
struct TypedCall<Op, Result(Arguments...)> {
  // Before the first call.
  static void find_operator() {
    op.emplace(c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name));
  }

  static Result run(c10::DispatchKeySet keys, Arguments... arguments) {
    const std::array<Operand, sizeof...(Arguments)> operands = {operand(arguments)...};
    PlainCall call(plan());
    if (!call.begins(operands)) return run_boxed(keys, arguments...);

    const c10::impl::ExcludeDispatchKeyGuard no_nested_calls(kInterceptorKey);
    Result result = redispatch(call, operands, below_interceptor(keys), arguments...);
    if (!call.ends_well(tensors_of(result), first_tensor(operands))) {
      call.explain(*op, c10::impl::boxArgs<Arguments...>(arguments...), box_results(result));
    }
    return result;
  }

 private:
  inline static std::optional<c10::OperatorHandle> op;

  static const OpPlan& plan() {
    static std::atomic<const OpPlan*> known{nullptr};
    const OpPlan* plan = known.load(std::memory_order_acquire);
    if (plan == nullptr) known = plan = &plan_of(*op);
    return *plan;
  }

  static Result run_boxed(c10::DispatchKeySet keys, Arguments... arguments) {
    const auto kernel = c10::BoxedKernel::makeFromFunction<&intercept>();
    return c10::impl::BoxedKernelWrapper<Result(Arguments...)>::call(kernel, *op, keys,
                                                                     std::forward<Arguments>(arguments)...);
  }

  static Result redispatch(PlainCall& call, c10::ArrayRef<Operand> operands, c10::DispatchKeySet below,
                           Arguments... arguments) {
    try {
      return Op::redispatch(below, std::forward<Arguments>(arguments)...);
    } catch (...) {
      call.forget(operands);
      throw;
    }
  }

  static std::array<const at::Tensor*, 1> tensors_of(const at::Tensor& result) { return {&result}; }
  template <typename... Tensors>
  static std::array<const at::Tensor*, sizeof...(Tensors)> tensors_of(const std::tuple<Tensors...>& results) {
    return std::apply([](const auto&... result) { return std::array{&result...}; }, results);
  }

  static torch::jit::Stack box_results(const at::Tensor& result) { return {result}; }
  template <typename... Tensors>
  static torch::jit::Stack box_results(const std::tuple<Tensors...>& results) {
    return std::apply([](const auto&... result) { return torch::jit::Stack{result...}; }, results);
  }

  static const at::Tensor* first_tensor(c10::ArrayRef<Operand> operands) {
    return operands[0].kind == Operand::Kind::kTensor ? operands[0].tensor : nullptr;
  }
};

}  // namespace torchnan
