#include "intercept/fallback.h"

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "intercept/dispatch_key.h"
#include "intercept/op_call.h"
#include "intercept/op_plan.h"
#include "watch/thread_state.h"

namespace torchnan {

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = below_interceptor(keys);
  ThreadState& thread = ThreadState::here();
  Watch* watch = thread.watch();
  const OpPlan& plan = plan_of(op);
  if (watch == nullptr || plan.course == OpPlan::Course::kDecompose) {
    op.redispatchBoxed(below, stack);  // the key stays on: the parts of a composite come by on their own
    return;
  }
  // What a kernel calls inside is its own affair.
  const c10::impl::ExcludeDispatchKeyGuard no_nested_calls(kInterceptorKey);
  if (plan.course == OpPlan::Course::kPass) {
    op.redispatchBoxed(below, stack);
    return;
  }
  OpCall(op, plan, below, stack, thread, *watch).run();
}

}  // namespace torchnan
