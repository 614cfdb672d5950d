#include "intercept/op_call.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include "backward/call_site_ring.h"
#include "check/tensor_check.h"
#include "origin/harm.h"
#include "origin/ledger.h"
#include "origin/lineage.h"
#include "origin/roots.h"

namespace torchnan {
namespace {

// Calls visit(tensor) for each tensor in a tensor, an optional tensor or a list of either.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor() && element.toTensor().defined()) visit(element.toTensor());
    }
  }
}

}  // namespace

OpCall::OpCall(const c10::OperatorHandle& op, const OpPlan& plan, c10::DispatchKeySet below, torch::jit::Stack* stack,
               ThreadState& thread, Watch& watch)
    : op_(op), plan_(plan), below_(below), stack_(stack), thread_(thread), watch_(watch) {}

void OpCall::run() {
  thread_.counters().ops.add(1);
  note_call_site();
  if (lineage().in_use()) note_backward();
  if (plan_.course == OpPlan::Course::kSite || !watches_this_pass()) {
    redispatch();
    return;
  }
  if (watch_.never_judges(plan_.name, plan_.index)) {
    run_without_judging();
    return;
  }
  keep_arguments();
  look_at_arguments();
  judge_before(facts(), bad_arguments_);
  redispatch();
  look_at_results();
  if (!bad_results_.empty()) attribute(facts(), bad_arguments_, bad_results_);
}

// What the call writes is taken as it comes, and remembered as such: nothing it leads to is an alarm.
void OpCall::run_without_judging() {
  keep_arguments();
  redispatch();
  for_each_result([this](const at::Tensor& result, int64_t) { ledger().note_not_judged(result, &plan_); });
}

bool OpCall::watches_this_pass() const {
  return watch_.options().backward || torch::autograd::get_current_graph_task_id() == -1;
}

CallFacts OpCall::facts() const { return {plan_, kept_, watch_, thread_.id()}; }

// Below autograd, the node of this operation is the one that this thread made last.
void OpCall::note_call_site() {
  if (!watch_.options().stacks || !watch_.options().backward) return;
  const uint64_t sequence = at::sequence_number::peek();
  if (sequence == thread_.last_sequence) return;
  // An operation that makes a node does so with grad mode on. Others come in between: hooks that pack what the node
  // saves, or the inside of a Function; they stand for the node until the operation itself comes.
  if (c10::GradMode::is_enabled()) {
    thread_.last_sequence = sequence;
  } else if (sequence == thread_.last_sequence_inside) {
    return;
  }
  thread_.last_sequence_inside = sequence;
  note_node(sequence - 1, thread_);
}

void OpCall::note_backward() {
  const int pass = torch::autograd::get_current_graph_task_id();
  if (pass == thread_.last_backward_pass) return;
  thread_.last_backward_pass = pass;
  if (pass != -1) judge_beginning_of_backward(watch_);
}

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
    for_each_tensor(kept_[k], [&](const at::Tensor& tensor) { look_at_argument(tensor, k, written != nullptr); });
  }
}

void OpCall::look_at_argument(const at::Tensor& argument, size_t kept, bool overwritten) {
  const at::Tensor tensor = readable(argument);
  if (!tensor.defined()) return;
  const bool known = lineage().in_use() && lineage().knows(tensor);
  const bool is_last_chance = overwritten || plan_.course == OpPlan::Course::kRead;
  if (!known && (!is_last_chance || ledger().find(tensor).known == Ledger::Known::kFinite)) return;
  const Kinds kinds = kinds_of(tensor);
  if (kinds.any()) {
    const std::string& name = plan_.argument_names[plan_.kept_arguments[kept]];
    bad_arguments_.push_back(bad_argument(facts(), tensor, name, kinds, overwritten));
  } else if (!known) {
    ledger().note_finite(tensor);
  }
}

void OpCall::redispatch() { op_.redispatchBoxed(below_, stack_); }

void OpCall::look_at_results() {
  if (plan_.returns_early) {
    thread_.counters().skipped[static_cast<size_t>(Skip::kCollective)].add(1);
    for_each_result([this](const at::Tensor& result, int64_t) { expect(facts(), bad_arguments_, result); });
    return;
  }
  for_each_result([this](const at::Tensor& result, int64_t output) { look_at_result(result, output); });
}

// Tensors that the call has written, lists counted through.
template <typename Visit>
void OpCall::for_each_result(Visit&& visit) {
  const size_t first = stack_->size() - plan_.returns;
  int64_t output = 0;
  for (const uint16_t r : plan_.checked_returns) {
    for_each_tensor((*stack_)[first + r], [&](const at::Tensor& tensor) { visit(tensor, output++); });
  }
  for (const OpPlan::Written& written : plan_.written) {
    if (written.returned) continue;
    for_each_tensor(kept_[written.kept], [&](const at::Tensor& tensor) { visit(tensor, output++); });
  }
}

void OpCall::look_at_result(const at::Tensor& result, int64_t output) {
  Counters& counters = thread_.counters();
  if (plan_.course == OpPlan::Course::kAllocate) {
    if (plan_.hands_out_memory) {
      ledger().note_unwritten(result, program().capture(), &plan_);
    } else {
      ledger().forget(result);
    }
    return;
  }
  const Verdict verdict = check_finite(result);
  if (verdict.skip != Skip::kNone) {
    counters.skipped[static_cast<size_t>(verdict.skip)].add(1);
    return;
  }
  counters.checked.add(1);
  counters.bytes.add(verdict.bytes);
  if (!verdict.finite) {
    counters.nonfinite.add(1);
    const at::Tensor tensor = readable(result);
    bad_results_.push_back({tensor, kinds_of(tensor), output});
    return;
  }
  const at::Tensor tensor = readable(result);
  ledger().note_finite(tensor);
  if (lineage().in_use() && plan_.writes_in_place()) lineage().settle(tensor);
}

}  // namespace torchnan
