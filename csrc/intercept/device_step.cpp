#include "intercept/device_step.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "bounds/operand.h"
#include "device/device_check.h"
#include "device/recorded_bounds.h"

namespace torchnan {
namespace {

const OpPlan& plan_named(const char* name, const char* overload) {
  return plan_of(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

Operand operand_of(const std::vector<c10::IValue>& list) {
  Operand made;
  made.kind = Operand::Kind::kValues;
  made.first = list.data();
  made.count = list.size();
  return made;
}

}  // namespace

void DeviceStep::add(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& first_moment,
                     const at::Tensor& second_moment, const AdamBounds& after, bool is_parameter_proved,
                     bool has_history) {
  parameters_.emplace_back(parameter);
  gradients_.emplace_back(gradient);
  first_moments_.emplace_back(first_moment);
  second_moments_.emplace_back(second_moment);
  const auto predicted = [this](const Bound& bound, bool is_proved) {
    return is_proof_void_ ? Prediction() : Prediction{.bound = bound, .is_proved = is_proved};
  };
  parameter_.push_back(predicted({after.parameter}, is_parameter_proved));
  first_moment_.push_back(predicted({after.first_moment}, true));
  second_moment_.push_back(predicted({after.second_moment, true}, true));
  histories_.push_back(has_history && !is_proof_void_ ? after.history : MomentHistory());
}

// The history of two moments is identified by the write to the first one, which comes before. An alarm is heeded only
// after the last operation: those before it would not be scanned again.
void DeviceStep::record() {
  if (parameters_.empty()) return;
  const Moments::Claim mean = Moments::claim_of_mean();
  for (Prediction& first : first_moment_) first.claim = &mean;
  record_operation(plan_named("aten::_foreach_lerp_", "Scalar"), {&first_moments_, &gradients_}, first_moment_, false);
  std::vector<Moments::Claim> squares(histories_.size());
  for (size_t i = 0; i < squares.size(); ++i) {
    const uint64_t write = recorded_knowledge(first_moments_[i].toTensor()).write_number();
    squares[i] = Moments::claim_of_squares(write, histories_[i]);
    second_moment_[i].claim = &squares[i];
  }
  record_operation(plan_named("aten::_foreach_addcmul_", "Scalar"), {&second_moments_, &gradients_, &gradients_},
                   second_moment_, false);
  record_operation(plan_named("aten::_foreach_addcdiv_", "Scalar"), {&parameters_, &first_moments_, &second_moments_},
                   parameter_, true);
}

void DeviceStep::record_operation(const OpPlan& plan, std::initializer_list<const List*> lists,
                                  const Predictions& predicted, bool is_last) {
  c10::SmallVector<Operand, 3> operands;
  for (const List* list : lists) operands.push_back(operand_of(*list));
  DeviceCheck check(plan, thread_, session_);
  check.record_arguments(operands);
  const List& written = **lists.begin();
  for (size_t i = 0; i < written.size(); ++i) {
    check.add_result(written[i].toTensor(), static_cast<int64_t>(i), predicted[i]);
  }
  is_last ? check.finish() : check.record();
}

}  // namespace torchnan
