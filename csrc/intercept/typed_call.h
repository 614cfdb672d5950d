// An intercepted call without boxing: for the operators that dominate programs of many small operations.
//
// Boxing converts every argument to an IValue and back, twice; that is most of the cost of interception. Here arguments
// stay unboxed. If there is anything to attribute, the call is boxed after all and becomes an OpCall. Large is a call
// that is not a SmallCall.
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
#include <c10/util/FunctionRef.h>

#include "check/bounds/operand.h"
#include "base/dispatch_key.h"
#include "intercept/fallback.h"
#include "check/operators/op_plan.h"
#include "intercept/device_results.h"
#include "intercept/host_results.h"
#include "intercept/small_call.h"
#include "detection/error_containment.h"

namespace torchnan {

// The part that does not depend on the operator's type. Lives on the stack of the call.
class UnboxedCall {
 public:
  UnboxedCall(ThreadState& thread, DetectionSession& session) : thread_(thread), session_(session) {}

  const DetectionSession& session() const { return session_; }

  // Starts the call unless it must be boxed: an argument is known to be bad, or a tensor that is overwritten or read by
  // user code is not known to be finite. Returns whether it did.
  bool try_start(const OpPlan& plan, c10::ArrayRef<Operand> arguments, c10::DispatchKeySet keys);

  // Continues a SmallCall that has run, and could not check everything.
  void take_over(const OpPlan& plan);

  // Checks the results, tensors in the order of the schema, from number `first` on. Returns false if one is not finite.
  bool check_results(c10::ArrayRef<const at::Tensor*> results, c10::ArrayRef<Operand> arguments, size_t first = 0);

  // Forgets the bounds of the tensors that the call writes, because it failed or is not checked.
  void forget(c10::ArrayRef<Operand> arguments) noexcept;

  // Attributes the results of the call; `box` returns its arguments and results.
  using Box = c10::function_ref<std::pair<torch::jit::Stack, torch::jit::Stack>()>;
  void attribute_results(const c10::OperatorHandle& op, Box box);

 private:
  template <typename Results>
  bool check_each(Results& checks, c10::ArrayRef<const at::Tensor*> results, c10::ArrayRef<Operand> arguments,
                  size_t first);

  ThreadState& thread_;
  DetectionSession& session_;
  const OpPlan* plan_ = nullptr;        // until it has started
  std::optional<HostResults> on_host_;  // one of these is chosen at the start
  std::optional<DeviceResults> on_device_;
};

// Records the call site of a view, if this thread has a session.
void record_view(ThreadState& thread);

inline const at::Tensor kNoTensor;  // made when the library is loaded

enum class LargeCalls { kTyped, kBoxed };

// `Op` is an operator of PyTorch: at::_ops::mm. Its large calls are typed too if they are frequent enough to be worth
// the code.
template <typename Op, LargeCalls kLarge, typename Signature = typename Op::schema>
struct TypedCall;

template <typename Op, LargeCalls kLarge, typename Result, typename... Arguments>
struct TypedCall<Op, kLarge, Result(Arguments...)> {
  // Called before the first call.
  static void find_operator() {
    op.emplace(c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name));
  }

  static Result run(c10::DispatchKeySet keys, Arguments... arguments) {
    const NoNestedCalls no_nested_calls;
    SmallCall call;
    if constexpr (kDraws) {
      if (call.thread().private_generators != nullptr) [[unlikely]] {
        torch::jit::Stack stack = c10::impl::boxArgs<Arguments...>(arguments...);
        return intercept_boxed(keys, stack, arguments...);
      }
    }
    const OpPlan* const plan = call.session() == nullptr ? nullptr : find_plan(*call.session());
    const bool is_small = plan != nullptr && (SmallCall::is_small(arguments) && ...);
    if (!is_small || !call.try_start(*plan, first_tensor(arguments...), keys))
      return run_any(call, plan, keys, arguments...);
    Result result = redispatch([&]() noexcept { call.forget(); }, below_interceptor(keys), arguments...);
    const auto results = tensors_of(result);
    const size_t checked = call.check(results);
    if (checked < results.size()) [[unlikely]]
      check_rest(call, *plan, result, checked, arguments...);
    return result;
  }

 private:
  static constexpr bool kDraws = (std::is_same_v<Arguments, std::optional<at::Generator>> || ...);
  inline static std::optional<c10::OperatorHandle> op;

  // The first argument, if it is a tensor.
  template <typename... Rest>
  static const at::Tensor& first_tensor(const at::Tensor& first, const Rest&...) {
    return first;
  }
  template <typename... Any>
  static const at::Tensor& first_tensor(const Any&...) {
    return kNoTensor;
  }

  // Null if there is no memory for it.
  static const OpPlan* find_plan(const DetectionSession& session) {
    static std::atomic<const OpPlan*> known{nullptr};
    const OpPlan* plan = known.load(std::memory_order_acquire);
    if (plan == nullptr) run_contained(session, "planning for an operator", [&] { known = plan = &plan_of(*op); });
    return plan;
  }

  // A call of any kind.
  [[gnu::noinline]] static Result run_any(const SmallCall& small, const OpPlan* plan, c10::DispatchKeySet keys,
                                          Arguments... arguments) {
    const c10::DispatchKeySet below = below_interceptor(keys);
    if (small.session() == nullptr) return Op::redispatch(below, std::forward<Arguments>(arguments)...);
    UnboxedCall call(small.thread(), *small.session());
    const std::array<Operand, sizeof...(Arguments)> operands = {operand(arguments)...};
    if (kLarge == LargeCalls::kBoxed || plan == nullptr || !call.try_start(*plan, operands, keys))
      return run_boxed(call, operands, plan, keys, arguments...);
    Result result = redispatch([&]() noexcept { call.forget(operands); }, below, arguments...);
    check(call, result, operands, 0, arguments...);
    return result;
  }

  // The results of a small call from number `first` on.
  [[gnu::noinline]] static void check_rest(const SmallCall& small, const OpPlan& plan, const Result& result,
                                           size_t first, Arguments... arguments) {
    UnboxedCall call(small.thread(), *small.session());
    call.take_over(plan);
    const std::array<Operand, sizeof...(Arguments)> operands = {operand(arguments)...};
    check(call, result, operands, first, arguments...);
  }

  static void check(UnboxedCall& call, const Result& result, c10::ArrayRef<Operand> operands, size_t first,
                    Arguments... arguments) {
    if (call.check_results(tensors_of(result), operands, first)) return;
    call.attribute_results(
        *op, [&] { return std::pair(c10::impl::boxArgs<Arguments...>(arguments...), box_results(result)); });
  }

  static Result run_boxed(UnboxedCall& call, c10::ArrayRef<Operand> operands, const OpPlan* plan,
                          c10::DispatchKeySet keys, Arguments... arguments) {
    torch::jit::Stack stack;
    const auto box = [&] { stack = c10::impl::boxArgs<Arguments...>(arguments...); };
    if (plan == nullptr || !run_contained(call.session(), "boxing a call", box)) {
      call.forget(operands);
      return redispatch([&]() noexcept { call.forget(operands); }, below_interceptor(keys), arguments...);
    }
    return intercept_boxed(keys, stack, arguments...);
  }

  static Result intercept_boxed(c10::DispatchKeySet keys, torch::jit::Stack& stack, Arguments... arguments) {
    intercept(*op, keys, &stack);
    if constexpr (std::is_reference_v<Result>) {
      return std::get<0>(std::tie(arguments...));  // in place: the first argument
    } else {
      return c10::impl::PopResult<Result>::call(stack);
    }
  }

  template <typename Forget>
  static Result redispatch(Forget forget, c10::DispatchKeySet below, Arguments... arguments) {
    try {
      return Op::redispatch(below, std::forward<Arguments>(arguments)...);
    } catch (...) {
      forget();
      throw;
    }
  }

  static std::array<const at::Tensor*, 1> tensors_of(const at::Tensor& result) { return {&result}; }
  static c10::ArrayRef<const at::Tensor*> tensors_of(const at::Scalar&) { return {}; }
  template <typename... Tensors>
  static std::array<const at::Tensor*, sizeof...(Tensors)> tensors_of(const std::tuple<Tensors...>& results) {
    return std::apply([](const auto&... result) { return std::array{&result...}; }, results);
  }

  static torch::jit::Stack box_results(const at::Tensor& result) { return {result}; }
  static torch::jit::Stack box_results(const at::Scalar& result) { return {result}; }
  template <typename... Tensors>
  static torch::jit::Stack box_results(const std::tuple<Tensors...>& results) {
    return std::apply([](const auto&... result) { return torch::jit::Stack{result...}; }, results);
  }
};

// A view whose call site is worth recording; it is neither large nor small.
template <typename Op, typename Signature = typename Op::schema>
struct TypedView;

template <typename Op, typename Result, typename... Arguments>
struct TypedView<Op, Result(Arguments...)> {
  static Result run(c10::DispatchKeySet keys, Arguments... arguments) {
    const NoNestedCalls no_nested_calls;
    record_view(ThreadState::current());
    return Op::redispatch(below_interceptor(keys), std::forward<Arguments>(arguments)...);
  }
};

}  // namespace torchnan
