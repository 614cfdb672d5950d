// An intercepted call without boxing: for the operators that a program of many small operations spends its time on.
//
// Boxing turns every argument into an IValue and back, twice; that is most of what interception costs. Here arguments
// stay what they are. As soon as there is anything to attribute, the call is boxed after all and becomes an OpCall.
#pragma once

#include <array>
#include <atomic>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/boxing/impl/boxing.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/FunctionRef.h>

#include "bounds/operand.h"
#include "operators/dispatch_key.h"
#include "intercept/fallback.h"
#include "operators/op_plan.h"
#include "intercept/device_results.h"
#include "intercept/host_results.h"
#include "detection/error_containment.h"

namespace torchnan {

// The part that does not depend on the operator's type. Lives on the stack of the call.
class UnboxedCall {
 public:
  UnboxedCall() : thread_(ThreadState::current()), session_(thread_.session()) {}

  const DetectionSession* session() const { return session_; }

  // Starts the call unless it has to be boxed: an argument is known to be bad, or what is overwritten is not known to
  // be finite. Returns whether it did.
  bool try_start(const OpPlan& plan, c10::ArrayRef<Operand> arguments, c10::DispatchKeySet keys);

  // Checks the results, tensors in the order of the schema. Returns false if something is not finite.
  bool check_results(c10::ArrayRef<const at::Tensor*> results, c10::ArrayRef<Operand> arguments);

  // Forgets what the call writes: it has failed, or is not checked.
  void forget(c10::ArrayRef<Operand> arguments) noexcept;

  // Attributes what the call has written; `box` gives its arguments and results.
  using Box = c10::function_ref<std::pair<torch::jit::Stack, torch::jit::Stack>()>;
  void attribute_results(const c10::OperatorHandle& op, Box box);

 private:
  template <typename Results>
  bool check_each(Results& checks, c10::ArrayRef<const at::Tensor*> results);

  ThreadState& thread_;
  DetectionSession* const session_;
  const OpPlan* plan_ = nullptr;        // until it has started
  std::optional<HostResults> on_host_;  // one of these is chosen at the start
  std::optional<DeviceResults> on_device_;
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
    const c10::DispatchKeySet below = below_interceptor(keys);
    const c10::impl::ExcludeDispatchKeyGuard no_nested_calls(kInterceptorKey);
    UnboxedCall call;
    if (call.session() == nullptr) return Op::redispatch(below, std::forward<Arguments>(arguments)...);

    const std::array<Operand, sizeof...(Arguments)> operands = {operand(arguments)...};
    const OpPlan* const plan = find_plan(*call.session());
    if (plan == nullptr || !call.try_start(*plan, operands, keys))
      return run_boxed(call, operands, plan, keys, arguments...);
    Result result = redispatch(call, operands, below, arguments...);
    if (!call.check_results(tensors_of(result), operands)) {
      call.attribute_results(
          *op, [&] { return std::pair(c10::impl::boxArgs<Arguments...>(arguments...), box_results(result)); });
    }
    return result;
  }

 private:
  inline static std::optional<c10::OperatorHandle> op;

  // Null if there is no memory for it.
  static const OpPlan* find_plan(const DetectionSession& session) {
    static std::atomic<const OpPlan*> known{nullptr};
    const OpPlan* plan = known.load(std::memory_order_acquire);
    if (plan == nullptr) contain(session, "planning for an operator", [&] { known = plan = &plan_of(*op); });
    return plan;
  }

  static Result run_boxed(UnboxedCall& call, c10::ArrayRef<Operand> operands, const OpPlan* plan,
                          c10::DispatchKeySet keys, Arguments... arguments) {
    torch::jit::Stack stack;
    const auto box = [&] { stack = c10::impl::boxArgs<Arguments...>(arguments...); };
    if (plan == nullptr || !contain(*call.session(), "boxing a call", box)) {
      call.forget(operands);
      return redispatch(call, operands, below_interceptor(keys), arguments...);
    }
    intercept(*op, keys, &stack);
    if constexpr (std::is_reference_v<Result>) {
      return std::get<0>(std::tie(arguments...));  // in place: what it was called on
    } else {
      return c10::impl::PopResult<Result>::call(stack);
    }
  }

  static Result redispatch(UnboxedCall& call, c10::ArrayRef<Operand> operands, c10::DispatchKeySet below,
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
};

}  // namespace torchnan
