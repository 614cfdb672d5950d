// The results on devices of a step of Adam that was proved as a whole.
#pragma once

#include <initializer_list>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "bounds/adam_step.h"
#include "bounds/prediction.h"
#include "detection/thread_state.h"
#include "device/devices.h"
#include "operators/op_plan.h"

namespace torchnan {

// Records the step as three operations on lists, although PyTorch has run others: these state which tensors depend on
// which.
class DeviceStep {
 public:
  static constexpr int64_t kResults = 3;  // recorded for each update

  // `times_voided`: of devices, when the step was proved. If proofs have been discarded since then, everything is
  // scanned.
  DeviceStep(ThreadState& thread, DetectionSession& session, uint64_t times_voided)
      : thread_(thread), session_(session), is_proof_void_(devices().times_voided() != times_voided) {}

  // Adds an update that has run. A parameter that is not proved is scanned. `has_history`: whether one of the moments
  // is known.
  void add(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& first_moment,
           const at::Tensor& second_moment, const AdamBounds& after, bool is_parameter_proved, bool has_history);

  void record();

 private:
  using List = std::vector<c10::IValue>;
  using Predictions = std::vector<Prediction>;

  void record_operation(const OpPlan& plan, std::initializer_list<const List*> lists, const Predictions& predicted,
                        bool is_last);

  ThreadState& thread_;
  DetectionSession& session_;
  const bool is_proof_void_;
  List parameters_, gradients_, first_moments_, second_moments_;
  Predictions parameter_, first_moment_, second_moment_;
  std::vector<MomentHistory> histories_;
};

}  // namespace torchnan
