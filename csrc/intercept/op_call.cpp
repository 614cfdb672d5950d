#include "intercept/op_call.h"

#include "bounds/dtype_range.h"
#include "bounds/ledger.h"
#include "bounds/operand.h"
#include "check/tensor_check.h"
#include "intercept/arrival.h"
#include "origin/harm.h"
#include "origin/lineage.h"
#include "origin/roots.h"
#include "watch/contain.h"

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
               ThreadState& thread, Watch& watch)
    : op_(op), plan_(plan), below_(below), stack_(stack), thread_(thread), watch_(watch), check_(plan, thread, watch) {}

void forget_all(c10::ArrayRef<c10::IValue> arguments) noexcept {
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [](const at::Tensor& tensor, int64_t) { ledger().forget(tensor); });
  }
}

void OpCall::run() {
  contain(watch_, "noting an operation", [this] { check_.note_site(note_arrival(thread_, watch_)); });
  if (plan_.course == OpPlan::Course::kSite) {
    redispatch();
  } else if (!watches_this_pass(watch_)) {
    run_unwatched();
  } else if (watch_.never_judges(plan_.name, plan_.index)) {
    run_without_judging();
  } else {
    run_judged();
  }
}

void OpCall::run_judged() {
  const bool is_prepared = contain(watch_, "looking at arguments", [this] {
    keep_arguments();
    look_at_arguments();
    judge_before(facts(), bad_arguments_);
    look_at_operands();
  });
  if (!is_prepared) return run_blindly();
  redispatch();
  const bool is_judged = contain(watch_, "looking at results", [this] {
    look_at_results();
    if (device_ && !bad_results_.empty()) device_->find_bad_arguments(bad_arguments_);
    attribute_bad_results();
    if (device_) device_->finish();
  });
  if (!is_judged) forget_results();
}

// Not even its arguments could be kept.
void OpCall::run_blindly() {
  const size_t first = stack_->size() - plan_.arguments;
  for (const OpPlan::Written& written : plan_.written) {
    forget_all((*stack_)[first + plan_.kept_arguments[written.kept]]);
  }
  kept_.clear();
  redispatch();
}

// The call has run, its results have been judged, and something in them is not finite.
void OpCall::explain(torch::jit::Stack& results) {
  keep_arguments();
  stack_ = &results;
  for_each_result([this](const at::Tensor& result, int64_t output) { note_bad_result(result, output); });
  attribute_bad_results();
}

void OpCall::attribute_bad_results() {
  if (bad_results_.empty()) return;
  attribute(facts(), bad_arguments_, bad_results_);
  note_masks();
}

// What the call writes is not looked at, so nothing is known of it any more.
void OpCall::run_unwatched() {
  if (!contain(watch_, "keeping arguments", [this] { keep_arguments(); })) return run_blindly();
  redispatch();
  forget_results();
}

// What the call writes is taken as it comes, and remembered as such: nothing it leads to is an alarm.
void OpCall::run_without_judging() {
  if (!contain(watch_, "keeping arguments", [this] { keep_arguments(); })) return run_blindly();
  redispatch();
  for_each_result([this](const at::Tensor& result, int64_t) { ledger().note_not_judged(result, &plan_); });
}

CallFacts OpCall::facts() const { return {plan_, kept_, watch_, thread_.id()}; }

void OpCall::keep_arguments() {
  const size_t first = stack_->size() - plan_.arguments;
  for (const uint16_t argument : plan_.kept_arguments) kept_.push_back((*stack_)[first + argument]);
}

// Arguments that are known to be bad, and those about to be overwritten that nobody knows: afterwards it is too
// late to ask.
void OpCall::look_at_arguments() {
  const bool something_is_bad = lineage().in_use() || plan_.course == OpPlan::Course::kRead;
  if (!something_is_bad && !plan_.writes_in_place()) return;
  for (size_t k = 0; k < kept_.size(); ++k) {
    const OpPlan::Written* written = plan_.written_at(k);
    if (written == nullptr ? !something_is_bad : !written->reads_old_values) continue;
    for_each_tensor(kept_[k], [&](const at::Tensor& tensor, int64_t place) {
      look_at_argument(tensor, k, kept_[k].isList() ? place : -1, written != nullptr);
    });
  }
}

void OpCall::look_at_argument(const at::Tensor& argument, size_t kept, int64_t element, bool overwritten) {
  const at::Tensor tensor = readable(argument);
  if (!tensor.defined()) return;
  const bool known = lineage().in_use() && lineage().knows(tensor);
  const bool is_last_chance = overwritten || plan_.course == OpPlan::Course::kRead;
  if (!known && !is_last_chance) return;
  const Ledger::Known note = ledger().find(tensor).known;
  if (!known && note == Ledger::Known::kFinite) return;
  const Kinds kinds = note == Ledger::Known::kMasked ? Kinds::of_neginf() : kinds_of(tensor);
  if (kinds.any()) {
    const std::string& name = plan_.argument_names[plan_.kept_arguments[kept]];
    bad_arguments_.push_back(bad_argument(facts(), tensor, name, element, kinds, overwritten));
  }
}

void OpCall::look_at_operands() {
  const bool concerns_device = DeviceCheck::concerns(below_);
  if (plan_.bounds.rule == nullptr && !concerns_device) return;
  c10::SmallVector<Operand, 12> operands;
  for (const c10::IValue& argument : torch::jit::last(*stack_, plan_.arguments)) operands.push_back(operand(argument));
  if (concerns_device) device_.emplace(plan_, thread_, watch_).before(operands);
  check_.bound_results(operands, device_ ? &*device_ : nullptr);
}

// A call that fails may have written a part.
void OpCall::redispatch() {
  try {
    op_.redispatchBoxed(below_, stack_);
  } catch (...) {
    for (const OpPlan::Written& written : plan_.written) {
      if (written.kept < kept_.size()) {
        for_each_tensor(kept_[written.kept], [this](const at::Tensor& tensor, int64_t) {
          ledger().forget(tensor);
          if (device_) device_->forget(tensor);
        });
      }
    }
    throw;
  }
}

void OpCall::forget_results() {
  for_each_result([](const at::Tensor& result, int64_t) { ledger().forget(result); });
}

void OpCall::look_at_results() {
  if (plan_.returns_early && !device_) {
    thread_.counters().skipped[static_cast<size_t>(Skip::kCollective)].add(1);
    for_each_result([this](const at::Tensor& result, int64_t) {
      ledger().note_brought(result, &plan_);
      expect(facts(), bad_arguments_, result, /*awaited=*/true);
    });
    return;
  }
  for_each_result([this](const at::Tensor& result, int64_t output) { look_at_result(result, output); });
}

// Tensors that the call has written, lists counted through.
template <typename Visit>
void OpCall::for_each_result(Visit&& visit) {
  const size_t first = stack_->size() - plan_.returns;
  int64_t output = 0;
  for (const uint16_t r : plan_.checked_returns) for_each_tensor((*stack_)[first + r], output, visit);
  for (const OpPlan::Written& written : plan_.written) {
    if (!written.returned) for_each_tensor(kept_[written.kept], output, visit);
  }
}

// Who copies to a device is not told of it by the keys of the call.
bool OpCall::is_on_device(const at::Tensor& result, int64_t output) {
  if (result.is_cpu() || (!device_ && !scannable(result).defined())) return false;
  if (!device_) {
    c10::SmallVector<Operand, 12> operands(plan_.arguments);
    for (size_t k = 0; k < kept_.size(); ++k) operands[plan_.kept_arguments[k]] = operand(kept_[k]);
    device_.emplace(plan_, thread_, watch_).before(operands);
  }
  return device_->after(result, output, check_.proof_of(result, output));
}

void OpCall::look_at_result(const at::Tensor& result, int64_t output) {
  if (is_on_device(result, output)) return;
  if (device_ && device_->is_copying_in_background()) return ledger().forget(result);
  if (device_ && device_->reads_devices()) check_.forget_bounds();
  if (plan_.course == OpPlan::Course::kAllocate) {
    if (plan_.hands_out_memory) {
      ledger().note_unwritten(result, program().capture(), &plan_);
    } else {
      ledger().forget(result);
    }
    return;
  }
  switch (check_.judge(result, output, !bad_arguments_.empty())) {
    case ResultCheck::Outcome::kNonFinite:
      note_bad_result(result, output);
      break;
    case ResultCheck::Outcome::kMasked:
      expect(facts(), bad_arguments_, result, /*awaited=*/false);
      break;
    case ResultCheck::Outcome::kFinite:
      if (plan_.vouches_for_sign) vouch_for_argument(output);
      break;
    case ResultCheck::Outcome::kPassedBy:
      break;
  }
}

void OpCall::note_bad_result(const at::Tensor& result, int64_t output) {
  const at::Tensor tensor = readable(result);
  const Kinds kinds = tensor.defined() ? kinds_of(tensor) : Kinds();
  if (kinds.any()) bad_results_.push_back({tensor, kinds, output});
}

// A finite square root says that nothing was below zero.
void OpCall::vouch_for_argument(int64_t output) {
  for_each_tensor(kept_[0], [&](const at::Tensor& argument, int64_t place) {
    if (place == output) ledger().note_nonnegative(argument);
  });
}

// What is -inf on purpose and otherwise finite can be bounded too.
void OpCall::note_masks() {
  for (const Result& bad : bad_results_) {
    if (bad.kinds != Kinds::of_neginf() || range_of(bad.tensor.scalar_type()).limit == 0) continue;
    const auto record = lineage().find(bad.tensor);
    if (record == nullptr || !record->is_deliberate()) continue;
    ledger().note_written(bad.tensor, {largest_finite(bad.tensor), false, true}, &plan_);
  }
}

}  // namespace torchnan
