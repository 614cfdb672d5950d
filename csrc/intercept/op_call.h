// One intercepted call, from its arguments to the attribution of its results.
#pragma once

#include <memory>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "check/operators/op_plan.h"
#include "intercept/dependent_results.h"
#include "intercept/host_results.h"
#include "intercept/run_again.h"
#include "detection/thread_state.h"
#include "origin/attribution.h"
#include "check/scan/storage_ranges.h"

namespace torchnan {

// Forgets the bounds of all tensors among the arguments.
void forget_all(c10::ArrayRef<c10::IValue> arguments) noexcept;

// Lives on the stack of the call. In a healthy call it allocates nothing and takes no lock.
class OpCall {
 public:
  OpCall(const c10::OperatorHandle& op, const OpPlan& plan, c10::DispatchKeySet below, torch::jit::Stack* stack,
         ThreadState& thread, DetectionSession& session);

  void run();

  // Attributes the results of a call that ran and was checked without this class; the stack holds its arguments.
  void attribute_results(torch::jit::Stack& results);

 private:
  void run_unchecked();
  void run_skipped();
  void run_untracked();
  void run_collective();
  // `Results` is HostResults or DeviceResults.
  template <typename Results>
  void run_checked(Results results);

  CallContext context() const;
  void save_arguments();
  at::Tensor saved_tensor(size_t argument, int64_t element) const;
  void inspect_arguments();
  void prepare_dependent_results();
  StorageRanges find_overwritten_storages(bool all) const;
  void inspect_argument(const at::Tensor& argument, size_t saved, int64_t element, bool overwritten);
  template <typename Results>
  void prepare(Results& results);
  template <typename Forget>
  void redispatch(Forget&& forget);
  void forget_results();
  template <typename Results>
  void check_results(Results& results);
  template <typename Visit>
  void for_each_result(Visit&& visit);
  template <typename Results>
  void check_values(Results& results, const at::Tensor& result, int64_t output);
  at::Tensor written_groups(const at::Tensor& result) const;
  at::Tensor saved_tensor_named(std::string_view name) const;
  template <typename Results>
  void check_result(Results& results, const at::Tensor& result, int64_t output);
  bool record_copy_to_device(HostResults& results, const at::Tensor& result, int64_t output);
  c10::SmallVector<Operand, 12> operands_of_saved() const;
  void record_bad_result(const at::Tensor& result, int64_t output);  // if it is non-finite
  void record_sign_of_argument(int64_t output);
  void attribute_bad_results();
  void record_mask_bounds();

  const c10::OperatorHandle& op_;
  const OpPlan& plan_;
  const c10::DispatchKeySet below_;
  torch::jit::Stack* stack_;
  ThreadState& thread_;
  DetectionSession& session_;

  c10::SmallVector<c10::IValue, 8> saved_;  // the plan's saved_arguments
  c10::SmallVector<BadArgument, 2> bad_arguments_;
  c10::SmallVector<Result, 2> bad_results_;
  std::unique_ptr<DependentResults> dependent_;  // null in a healthy call
  std::optional<RunAgain> again_;                // if an argument is bad, and the call can be repeated
};

}  // namespace torchnan
