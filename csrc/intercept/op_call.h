// One intercepted call, from its arguments to the verdict on what it wrote.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <torchnan/bounds.h>

#include "intercept/op_plan.h"
#include "watch/thread_state.h"
#include "origin/attribution.h"

namespace torchnan {

// Lives on the stack of the call. In a healthy call it allocates nothing and takes no lock.
class OpCall {
 public:
  OpCall(const c10::OperatorHandle& op, const OpPlan& plan, c10::DispatchKeySet below, torch::jit::Stack* stack,
         ThreadState& thread, Watch& watch);

  void run();

 private:
  static constexpr size_t kMostResults = 4;  // that a rule speaks of, lists aside
  static constexpr int64_t kSmall = 1024;  // elements: as cheap to read as to reason about

  void run_unwatched();
  void run_without_judging();
  bool watches_this_pass() const;
  CallFacts facts() const;
  void note_call_site();
  void note_backward();
  void keep_arguments();
  void look_at_arguments();
  void look_at_argument(const at::Tensor& argument, size_t kept, bool overwritten);
  void bound_results();
  void redispatch();
  void forget_results();
  void look_at_results();
  template <typename Visit>
  void for_each_result(Visit&& visit);
  void look_at_result(const at::Tensor& result, int64_t output);
  void read_result(const at::Tensor& result, int64_t output, const Bound& bound);
  bool is_sampled();
  bool is_proved(const at::Tensor& result, const Bound& bound);
  void note_proved(const at::Tensor& result, const Bound& bound);
  void note_masks();

  const c10::OperatorHandle& op_;
  const OpPlan& plan_;
  const c10::DispatchKeySet below_;
  torch::jit::Stack* const stack_;
  ThreadState& thread_;
  Watch& watch_;

  c10::SmallVector<c10::IValue, 8> kept_;  // the plan's kept_arguments
  c10::SmallVector<Bound, 4> bounds_;      // of the results, before there are any
  c10::SmallVector<BadArgument, 2> bad_arguments_;
  c10::SmallVector<Result, 2> bad_results_;
};

}  // namespace torchnan
