// Follows results of a NaN that do not show it: an index, an integer, a count of matches.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include "detection/thread_state.h"
#include "check/operators/op_plan.h"
#include "origin/attribution.h"
#include "origin/dependent_values.h"

namespace torchnan {

// For a call on the host, outside of the backward pass, with an argument that is NaN or depends on one. An operation on
// dependent values runs once more, with the alternatives: elements that differ depend on the NaN, too.
class DependentResults {
 public:
  // Called before the call. Returns null if none of its results need to be followed.
  static std::unique_ptr<DependentResults> of_call(const c10::OperatorHandle& op, const OpPlan& plan,
                                                   c10::DispatchKeySet below, DetectionSession& session,
                                                   c10::ArrayRef<BadArgument> bad_arguments,
                                                   c10::ArrayRef<c10::IValue> arguments);

  // Called before the call: reports the values that it hands to user code.
  void report_read() const;

  // Called after the call, with all its results.
  void record(c10::ArrayRef<c10::IValue> returned, uint64_t thread);

 private:
  DependentResults(const c10::OperatorHandle& op, const OpPlan& plan, c10::DispatchKeySet below,
                   DetectionSession& session);

  void find_dependent_arguments();
  void save_alternatives();
  at::Tensor alternative_tensor(const at::Tensor& tensor) const;
  bool may_run_again(c10::ArrayRef<at::Tensor> results) const;
  std::vector<at::Tensor> written(c10::ArrayRef<c10::IValue> returned, c10::ArrayRef<c10::IValue> arguments) const;
  std::vector<at::Tensor> run_again() const;
  void follow(c10::ArrayRef<at::Tensor> results, uint64_t thread);
  bool is_of_kind(const at::Tensor& result) const;
  void make(c10::ArrayRef<at::Tensor> results, uint64_t thread);
  at::Tensor where_it_is_made(const BadArgument& argument, const at::Tensor& result, const at::Tensor& first) const;
  at::Tensor where_it_is_hidden(const BadArgument& argument, const at::Tensor& result, const at::Tensor& first) const;
  void remember(const at::Tensor& result, const at::Tensor& alternative,
                const std::shared_ptr<const Provenance>& provenance, bool is_verdict) const;

  const c10::OperatorHandle& op_;
  const OpPlan& plan_;
  const bool hides_nan_;
  const c10::DispatchKeySet below_;
  DetectionSession& session_;

  std::vector<c10::IValue> arguments_;
  std::vector<BadArgument> nonfinite_;  // from which a result may be computed that does not show it
  std::vector<std::pair<at::Tensor, std::shared_ptr<const DependentValues>>> dependent_;  // among the arguments
  std::vector<std::pair<at::Tensor, at::Tensor>> alternatives_;  // for these, and for the tensors that the call writes
  std::vector<c10::IValue> alternative_arguments_;
};

}  // namespace torchnan
