// One intercepted call, from its arguments to the verdict on what it wrote.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include <optional>

#include "device/device_check.h"
#include "operators/op_plan.h"
#include "intercept/result_check.h"
#include "detection/thread_state.h"
#include "origin/attribution.h"

namespace torchnan {

// What is known of these tensors, and of those in these lists, is known no more.
void forget_all(c10::ArrayRef<c10::IValue> arguments) noexcept;

// Lives on the stack of the call. In a healthy call it allocates nothing and takes no lock.
class OpCall {
 public:
  OpCall(const c10::OperatorHandle& op, const OpPlan& plan, c10::DispatchKeySet below, torch::jit::Stack* stack,
         ThreadState& thread, DetectionSession& session);

  void run();

  // For a call that ran, and was judged, without this: the stack holds its arguments, `results` what it returned.
  void explain(torch::jit::Stack& results);

 private:
  void run_unchecked();
  void run_skipped();
  void run_checked();
  void run_untracked();
  CallContext facts() const;
  void save_arguments();
  void inspect_arguments();
  void look_at_argument(const at::Tensor& argument, size_t kept, int64_t element, bool overwritten);
  void inspect_operands();
  void redispatch();
  void forget_results();
  void check_results();
  template <typename Visit>
  void for_each_result(Visit&& visit);
  void check_result(const at::Tensor& result, int64_t output);
  bool is_on_device(const at::Tensor& result, int64_t output);
  void record_bad_result(const at::Tensor& result, int64_t output);  // if it is one
  void prove_nonnegative_argument(int64_t output);
  void attribute_bad_results();
  void record_mask_bounds();

  const c10::OperatorHandle& op_;
  const OpPlan& plan_;
  const c10::DispatchKeySet below_;
  torch::jit::Stack* stack_;
  ThreadState& thread_;
  DetectionSession& session_;

  c10::SmallVector<c10::IValue, 8> kept_;  // the plan's saved_arguments
  ResultCheck check_;
  std::optional<DeviceCheck> device_;  // if a device takes part
  c10::SmallVector<BadArgument, 2> bad_arguments_;
  c10::SmallVector<Result, 2> bad_results_;
};

}  // namespace torchnan
