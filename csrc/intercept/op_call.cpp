#include "intercept/op_call.h"

#include <algorithm>

#include <ATen/SequenceNumber.h>
#include <fmt/format.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include "backward/call_site_ring.h"
#include "bounds/bound_source.h"
#include "bounds/dtype_range.h"
#include "bounds/ledger.h"
#include "bounds/operand.h"
#include "check/tensor_check.h"
#include "origin/harm.h"
#include "origin/lineage.h"
#include "origin/roots.h"

namespace torchnan {
namespace {

// Calls visit(tensor, place) for each tensor in a tensor, an optional tensor or a list of either. What is left out keeps
// its place.
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
    : op_(op), plan_(plan), below_(below), stack_(stack), thread_(thread), watch_(watch) {}

void OpCall::run() {
  thread_.counters().ops.add(1);
  note_call_site();
  if (lineage().in_use()) note_backward();
  if (plan_.course == OpPlan::Course::kSite) {
    redispatch();
    return;
  }
  if (!watches_this_pass()) {
    run_unwatched();
    return;
  }
  if (watch_.never_judges(plan_.name, plan_.index)) {
    run_without_judging();
    return;
  }
  keep_arguments();
  look_at_arguments();
  judge_before(facts(), bad_arguments_);
  bound_results();
  redispatch();
  look_at_results();
  if (bad_results_.empty()) return;
  attribute(facts(), bad_arguments_, bad_results_);
  note_masks();
}

// What the call writes is not looked at, so nothing is known of it any more.
void OpCall::run_unwatched() {
  keep_arguments();
  redispatch();
  forget_results();
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
    for_each_tensor(kept_[k], [&](const at::Tensor& tensor, int64_t) { look_at_argument(tensor, k, written != nullptr); });
  }
}

void OpCall::look_at_argument(const at::Tensor& argument, size_t kept, bool overwritten) {
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
    bad_arguments_.push_back(bad_argument(facts(), tensor, name, kinds, overwritten));
  }
}

// From what is known of the arguments, while they are as they are passed. Where all is small a look is cheaper.
void OpCall::bound_results() {
  if (plan_.bounds.rule == nullptr || watch_.options().exact) return;
  c10::SmallVector<Operand, 12> operands;
  size_t elements = 1;
  bool is_worth_it = false;
  for (const c10::IValue& argument : torch::jit::last(*stack_, plan_.arguments)) {
    operands.push_back(operand(argument));
    if (argument.isTensorList()) {
      elements = std::max(elements, operands.back().count);
      is_worth_it = true;
    } else if (argument.isTensor() && argument.toTensor().defined()) {
      is_worth_it |= argument.toTensor().numel() > kSmall;
    }
  }
  if (!is_worth_it && watch_.options().sample == 0) return;
  const BoundSource source(thread_.counters());
  if (!plan_.bounds.elementwise_in_lists) {
    bounds_.resize(std::max(kMostResults, plan_.checked_returns.size() + plan_.written.size()));
    (*plan_.bounds.rule)(RuleArguments(operands, source), bounds_);
    return;
  }
  bounds_.resize(elements);
  for (size_t element = 0; element < elements; ++element) {
    (*plan_.bounds.rule)(RuleArguments(operands, source, element), {&bounds_[element], 1});
  }
}

// A call that fails may have written a part.
void OpCall::redispatch() {
  try {
    op_.redispatchBoxed(below_, stack_);
  } catch (...) {
    for (const OpPlan::Written& written : plan_.written) {
      if (written.kept < kept_.size()) {
        for_each_tensor(kept_[written.kept], [](const at::Tensor& tensor, int64_t) { ledger().forget(tensor); });
      }
    }
    throw;
  }
}

void OpCall::forget_results() {
  for_each_result([](const at::Tensor& result, int64_t) { ledger().forget(result); });
}

void OpCall::look_at_results() {
  if (plan_.returns_early) {
    thread_.counters().skipped[static_cast<size_t>(Skip::kCollective)].add(1);
    forget_results();
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
  for (const uint16_t r : plan_.checked_returns) for_each_tensor((*stack_)[first + r], output, visit);
  for (const OpPlan::Written& written : plan_.written) {
    if (!written.returned) for_each_tensor(kept_[written.kept], output, visit);
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
  const Skip skip = reason_to_skip(result);
  if (skip != Skip::kNone) {
    counters.skipped[static_cast<size_t>(skip)].add(1);
    if (plan_.writes_in_place()) ledger().forget(result);  // written as integers, say
    return;
  }
  counters.checked.add(1);
  const auto place = static_cast<size_t>(output);
  const Bound bound = place < bounds_.size() ? bounds_[place] : Bound();
  if (!is_sampled() && is_proved(result, bound)) {
    note_proved(result, bound);
  } else {
    read_result(result, output, bound);
  }
}

bool OpCall::is_proved(const at::Tensor& result, const Bound& bound) {
  const DtypeRange range = range_of(result.scalar_type());
  if (!(widened(bound.most, range) <= range.limit) || result.numel() <= kSmall) return false;
  return !bound.masked || !bad_arguments_.empty();  // of which one knows where the mask came from
}

// In N steps, every result once.
bool OpCall::is_sampled() {
  const int64_t n = watch_.options().sample;
  if (n == 0) return false;
  const int64_t step = watch_.step();
  return (thread_.next_place_in(step) + step) % n == 0;
}

// Within its bound, or -inf where its mask is.
void OpCall::note_proved(const at::Tensor& result, const Bound& bound) {
  thread_.counters().proved.add(1);
  thread_.counters().bytes_proved.add(static_cast<int64_t>(result.nbytes()));
  const Bound rounded{widened(bound.most, range_of(result.scalar_type())), bound.nonnegative, bound.masked};
  ledger().note_written(result, rounded, &plan_);
  if (bound.masked) {
    expect(facts(), bad_arguments_, result);
  } else if (lineage().in_use() && plan_.writes_in_place()) {
    lineage().settle(result);
  }
}

void OpCall::read_result(const at::Tensor& result, int64_t output, const Bound& bound) {
  Counters& counters = thread_.counters();
  const Verdict verdict = check_finite(result);
  counters.bytes.add(verdict.bytes);
  if (!bounds_.empty()) counters.bytes_reanchored.add(verdict.bytes);
  const at::Tensor tensor = readable(result);
  if (!verdict.finite) {
    counters.nonfinite.add(1);
    ledger().forget(tensor);
    bad_results_.push_back({tensor, kinds_of(tensor), output});
    return;
  }
  if (verdict.most > widened(bound.most, range_of(tensor.scalar_type()))) {
    watch_.count_internal_error(fmt::format("the bound of {} was {}, and its result {}", plan_.name, bound.most,
                                            verdict.most));
  }
  ledger().note_written(tensor, {verdict.most, bound.nonnegative}, &plan_);
  if (plan_.vouches_for_sign) {
    for_each_tensor(kept_[0], [&](const at::Tensor& argument, int64_t place) {
      if (place == output) ledger().note_nonnegative(argument);
    });
  }
  if (lineage().in_use() && plan_.writes_in_place()) lineage().settle(tensor);
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
