#include "intercept/fallback.h"

#include <optional>

#include "base/dispatch_key.h"
#include "intercept/op_call.h"
#include "intercept/received_values.h"
#include "check/operators/op_plan.h"
#include "detection/error_containment.h"
#include "detection/private_generators.h"
#include "detection/thread_state.h"

namespace torchnan {

namespace {

// Null if it cannot be made: then the tensors that the operator writes are unknown.
const OpPlan* plan_for(const c10::OperatorHandle& op, const torch::jit::Stack& stack, const DetectionSession& session) {
  const OpPlan* plan = nullptr;
  run_contained(session, "planning for an operator", [&] { plan = &plan_of(op); });
  if (plan == nullptr) forget_all(torch::jit::last(stack, op.schema().arguments().size()));
  return plan;
}

void intercept_given(ThreadState& thread, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = below_interceptor(keys);
  DetectionSession* session = thread.session();
  if (session == nullptr) {
    if (ReceivedValues* const received = ReceivingValues::current()) return received->run(op, below, stack);
  }
  const OpPlan* plan = session == nullptr ? nullptr : plan_for(op, *stack, *session);
  if (plan == nullptr || plan->handling == OpPlan::Handling::kDecompose) {
    op.redispatchBoxed(below, stack);  // the key stays on: the parts of a composite are intercepted separately
    return;
  }
  // Operations that a kernel calls internally are not intercepted.
  const NoNestedCalls no_nested_calls;
  if (plan->handling == OpPlan::Handling::kPass) {
    op.redispatchBoxed(below, stack);
    return;
  }
  OpCall(op, *plan, below, stack, thread, *session).run();
}

}  // namespace

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  ThreadState& thread = ThreadState::current();
  if (thread.private_generators != nullptr && thread.private_generators->concerns(keys)) [[unlikely]] {
    std::optional<PrivateGenerators::Lent> lent;
    thread.private_generators->replace_in(op, *stack, lent);
    intercept_given(thread, op, keys, stack);
    return;
  }
  intercept_given(thread, op, keys, stack);
}

}  // namespace torchnan
