#include "intercept/op_call.h"

#include "bounds/dtype_range.h"
#include "bounds/bound_cache.h"
#include "bounds/operand.h"
#include "scan/tensor_scan.h"
#include "intercept/op_entry.h"
#include "origin/harm.h"
#include "origin/nonfinite_registry.h"
#include "origin/origin_records.h"
#include "detection/error_containment.h"

namespace torchnan {
namespace {

// Calls visit(tensor, place) for each tensor in a tensor, an optional tensor or a list of either. What is left out
// keeps its place.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, int64_t& place, Visit&& visit) {
  if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor() && element.toTensor().defined()) visit(element.toTensor(), place);
      ++place;
    }
    return;
  }
  if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor(), place);
  ++place;
}

template <typename Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  int64_t place = 0;
  for_each_tensor(value, place, visit);
}

}  // namespace

OpCall::OpCall(const c10::OperatorHandle& op, const OpPlan& plan, c10::DispatchKeySet below, torch::jit::Stack* stack,
               ThreadState& thread, DetectionSession& session)
    : op_(op),
      plan_(plan),
      below_(below),
      stack_(stack),
      thread_(thread),
      session_(session),
      check_(plan, thread, session) {}

void forget_all(c10::ArrayRef<c10::IValue> arguments) noexcept {
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [](const at::Tensor& tensor, int64_t) { bound_cache().forget(tensor); });
  }
}

void OpCall::run() {
  contain(session_, "noting an operation", [this] { check_.note_site(record_op_entry(thread_, session_)); });
  if (plan_.handling == OpPlan::Handling::kRecordCallSite) {
    redispatch();
  } else if (!is_active_in_backward(session_)) {
    run_unchecked();
  } else if (session_.is_skipped_op(plan_.name, plan_.index)) {
    run_skipped();
  } else {
    run_checked();
  }
}

void OpCall::run_checked() {
  const bool is_prepared = contain(session_, "looking at arguments", [this] {
    save_arguments();
    inspect_arguments();
    report_arguments(facts(), bad_arguments_);
    inspect_operands();
  });
  if (!is_prepared) return run_untracked();
  redispatch();
  const bool is_judged = contain(session_, "looking at results", [this] {
    check_results();
    if (device_ && !bad_results_.empty()) device_->find_bad_arguments(bad_arguments_);
    attribute_bad_results();
    if (device_) device_->finish();
  });
  if (!is_judged) forget_results();
}

// Not even its arguments could be kept.
void OpCall::run_untracked() {
  const size_t first = stack_->size() - plan_.arguments;
  for (const OpPlan::MutatedArgument& written : plan_.written) {
    forget_all((*stack_)[first + plan_.saved_arguments[written.kept]]);
  }
  kept_.clear();
  redispatch();
}

// The call has run, its results have been judged, and something in them is not finite.
void OpCall::explain(torch::jit::Stack& results) {
  save_arguments();
  stack_ = &results;
  for_each_result([this](const at::Tensor& result, int64_t output) { record_bad_result(result, output); });
  attribute_bad_results();
}

void OpCall::attribute_bad_results() {
  if (bad_results_.empty()) return;
  attribute(facts(), bad_arguments_, bad_results_);
  record_mask_bounds();
}

// What the call writes is not looked at, so nothing is known of it any more.
void OpCall::run_unchecked() {
  if (!contain(session_, "keeping arguments", [this] { save_arguments(); })) return run_untracked();
  redispatch();
  forget_results();
}

// What the call writes is taken as it comes, and remembered as such: nothing it leads to is an alarm.
void OpCall::run_skipped() {
  if (!contain(session_, "keeping arguments", [this] { save_arguments(); })) return run_untracked();
  redispatch();
  for_each_result([this](const at::Tensor& result, int64_t) { bound_cache().record_ignored(result, &plan_.name); });
}

CallContext OpCall::facts() const { return {plan_, kept_, session_, thread_.id()}; }

void OpCall::save_arguments() {
  const size_t first = stack_->size() - plan_.arguments;
  for (const uint16_t argument : plan_.saved_arguments) kept_.push_back((*stack_)[first + argument]);
}

// Arguments that are known to be bad, and those about to be overwritten that nobody knows: afterwards it is too
// late to ask.
void OpCall::inspect_arguments() {
  const bool something_is_bad = nonfinite_registry().in_use() || plan_.handling == OpPlan::Handling::kRead;
  if (!something_is_bad && !plan_.writes_in_place()) return;
  for (size_t k = 0; k < kept_.size(); ++k) {
    const OpPlan::MutatedArgument* written = plan_.mutated_argument_at(k);
    if (written == nullptr ? !something_is_bad : !written->reads_previous_value) continue;
    for_each_tensor(kept_[k], [&](const at::Tensor& tensor, int64_t place) {
      look_at_argument(tensor, k, kept_[k].isList() ? place : -1, written != nullptr);
    });
  }
}

void OpCall::look_at_argument(const at::Tensor& argument, size_t kept, int64_t element, bool overwritten) {
  const at::Tensor tensor = scannable_values(argument);
  if (!tensor.defined()) return;
  const bool known = nonfinite_registry().in_use() && nonfinite_registry().knows(tensor);
  const bool is_last_chance = overwritten || plan_.handling == OpPlan::Handling::kRead;
  if (!known && !is_last_chance) return;
  const BoundCache::State note = bound_cache().find(tensor).state;
  if (!known && note == BoundCache::State::kFinite) return;
  const NonfiniteKinds kinds =
      note == BoundCache::State::kFiniteOrMasked ? NonfiniteKinds::of_neginf() : kinds_of(tensor);
  if (kinds.any()) {
    const std::string& name = plan_.argument_names[plan_.saved_arguments[kept]];
    bad_arguments_.push_back(bad_argument(facts(), tensor, name, element, kinds, overwritten));
  }
}

void OpCall::inspect_operands() {
  const bool concerns_device = DeviceCheck::concerns(below_);
  if (plan_.bounds.rule == nullptr && !concerns_device) return;
  c10::SmallVector<Operand, 12> operands;
  for (const c10::IValue& argument : torch::jit::last(*stack_, plan_.arguments)) operands.push_back(operand(argument));
  if (concerns_device) device_.emplace(plan_, thread_, session_).before(operands);
  check_.bound_results(operands, device_ ? &*device_ : nullptr);
}

// A call that fails may have written a part.
void OpCall::redispatch() {
  try {
    op_.redispatchBoxed(below_, stack_);
  } catch (...) {
    for (const OpPlan::MutatedArgument& written : plan_.written) {
      if (written.kept < kept_.size()) {
        for_each_tensor(kept_[written.kept], [this](const at::Tensor& tensor, int64_t) {
          bound_cache().forget(tensor);
          if (device_) device_->forget(tensor);
        });
      }
    }
    throw;
  }
}

void OpCall::forget_results() {
  for_each_result([](const at::Tensor& result, int64_t) { bound_cache().forget(result); });
}

void OpCall::check_results() {
  if (plan_.is_async_collective && !device_) {
    thread_.counters().skipped[static_cast<size_t>(Skip::kCollective)].add(1);
    for_each_result([this](const at::Tensor& result, int64_t) {
      bound_cache().record_pending_collective(result, &plan_.name);
      expect(facts(), bad_arguments_, result, /*awaited=*/true);
    });
    return;
  }
  for_each_result([this](const at::Tensor& result, int64_t output) { check_result(result, output); });
}

// Tensors that the call has written, lists counted through.
template <typename Visit>
void OpCall::for_each_result(Visit&& visit) {
  const size_t first = stack_->size() - plan_.returns;
  int64_t output = 0;
  for (const uint16_t r : plan_.checked_returns) for_each_tensor((*stack_)[first + r], output, visit);
  for (const OpPlan::MutatedArgument& written : plan_.written) {
    if (!written.returned) for_each_tensor(kept_[written.kept], output, visit);
  }
}

// Who copies to a device is not told of it by the keys of the call.
bool OpCall::is_on_device(const at::Tensor& result, int64_t output) {
  if (result.is_cpu() || (!device_ && !scannable(result).defined())) return false;
  if (!device_) {
    c10::SmallVector<Operand, 12> operands(plan_.arguments);
    for (size_t k = 0; k < kept_.size(); ++k) operands[plan_.saved_arguments[k]] = operand(kept_[k]);
    device_.emplace(plan_, thread_, session_).before(operands);
  }
  return device_->after(result, output, check_.proof_of(result, output));
}

void OpCall::check_result(const at::Tensor& result, int64_t output) {
  if (is_on_device(result, output)) return;
  if (device_ && device_->is_copying_in_background()) return bound_cache().forget(result);
  if (device_ && device_->reads_devices()) check_.forget_bounds();
  if (plan_.handling == OpPlan::Handling::kAllocate) {
    if (plan_.returns_allocation) {
      bound_cache().record_uninitialized(result, host_runtime().current_stack_id(), &plan_.name);
    } else {
      bound_cache().forget(result);
    }
    return;
  }
  switch (check_.judge(result, output, !bad_arguments_.empty())) {
    case ResultCheck::Outcome::kNonFinite:
      record_bad_result(result, output);
      break;
    case ResultCheck::Outcome::kFiniteOrMasked:
      expect(facts(), bad_arguments_, result, /*awaited=*/false);
      break;
    case ResultCheck::Outcome::kFinite:
      if (plan_.proves_nonnegative_input) prove_nonnegative_argument(output);
      break;
    case ResultCheck::Outcome::kSkipped:
      break;
  }
}

void OpCall::record_bad_result(const at::Tensor& result, int64_t output) {
  const at::Tensor tensor = scannable_values(result);
  const NonfiniteKinds kinds = tensor.defined() ? kinds_of(tensor) : NonfiniteKinds();
  if (kinds.any()) bad_results_.push_back({tensor, kinds, output});
}

// A finite square root says that nothing was below zero.
void OpCall::prove_nonnegative_argument(int64_t output) {
  for_each_tensor(kept_[0], [&](const at::Tensor& argument, int64_t place) {
    if (place == output) bound_cache().record_nonnegative(argument);
  });
}

// What is -inf on purpose and otherwise finite can be bounded too.
void OpCall::record_mask_bounds() {
  for (const Result& bad : bad_results_) {
    if (bad.kinds != NonfiniteKinds::of_neginf() || range_of(bad.tensor.scalar_type()).limit == 0) continue;
    const auto record = nonfinite_registry().find(bad.tensor);
    if (record == nullptr || !record->is_intentional()) continue;
    bound_cache().record_written(bad.tensor, {largest_finite(bad.tensor), false, true}, &plan_.name);
  }
}

}  // namespace torchnan
