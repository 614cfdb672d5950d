#include "intercept/op_call.h"

#include <algorithm>
#include <optional>

#include "check/bounds/dtype_range.h"
#include "check/bounds/bound_cache.h"
#include "check/bounds/operand.h"
#include "base/dispatch_key.h"
#include "check/operators/for_each_tensor.h"
#include "check/operators/op_traits.h"
#include "check/scan/storage_of.h"
#include "check/scan/tensor_scan.h"
#include "intercept/device_results.h"
#include "intercept/disproof.h"
#include "intercept/op_entry.h"
#include "origin/collectives.h"
#include "origin/harm.h"
#include "origin/memory_region.h"
#include "origin/moved_bytes.h"
#include "origin/nonfinite_registry.h"
#include "origin/origin_records.h"
#include "detection/error_containment.h"

namespace torchnan {
namespace {

void forget_bound(const at::Tensor& tensor) { bound_cache().forget(tensor); }

// While a kernel of a replay runs that may draw random numbers inside: those calls are intercepted, and not checked.
class DrawingInside {
 public:
  DrawingInside(ThreadState& thread, const OpPlan& plan) : thread_(may_draw(thread, plan) ? &thread : nullptr) {
    if (thread_ == nullptr) return;
    thread_->suspend();
    c10::impl::tls_set_dispatch_key_excluded(kInterceptorKey, false);
  }
  ~DrawingInside() {
    if (thread_ == nullptr) return;
    c10::impl::tls_set_dispatch_key_excluded(kInterceptorKey, true);
    thread_->resume();
  }
  DrawingInside(const DrawingInside&) = delete;
  DrawingInside& operator=(const DrawingInside&) = delete;

 private:
  static bool may_draw(const ThreadState& thread, const OpPlan& plan) {
    if (thread.private_generators == nullptr) [[likely]]
      return false;
    if (plan.is_async_collective) return false;  // what it does goes on in threads, which would be checked as this one
    return plan.draws_random_numbers || !plan.name.starts_with("aten::");  // only those have the tag
  }

  ThreadState* const thread_;
};

}  // namespace

OpCall::OpCall(const c10::OperatorHandle& op, const OpPlan& plan, c10::DispatchKeySet below, torch::jit::Stack* stack,
               ThreadState& thread, DetectionSession& session)
    : op_(op), plan_(plan), below_(below), stack_(stack), thread_(thread), session_(session) {}

void forget_all(c10::ArrayRef<c10::IValue> arguments) noexcept {
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument, [](const at::Tensor& tensor, int64_t) { forget_bound(tensor); });
  }
}

void OpCall::run() {
  SiteId site = 0;
  run_contained(session_, "recording a call site", [&] {
    site = record_op_entry(thread_, session_);
    check_backward_start(thread_, session_);
  });
  if (plan_.handling == OpPlan::Handling::kRecordCallSite) return redispatch(forget_bound);
  switch (checking_of(plan_, session_)) {
    case Checking::kOff:
      return run_unchecked();
    case Checking::kSkipped:
      return run_skipped();
    case Checking::kOn:
      break;
  }
  if (DeviceResults::concerns(below_)) {
    run_checked(DeviceResults(plan_, thread_, session_, site));
  } else if (plan_.is_async_collective) {
    run_collective();
  } else {
    run_checked(HostResults(plan_, thread_, session_, site));
  }
}

// The results do not exist yet when the call returns.
void OpCall::run_collective() {
  std::optional<HostCollective> collective;
  const bool is_prepared = run_contained(session_, "checking what a collective sends", [&] {
    save_arguments();
    collective.emplace(context(), torch::jit::last(*stack_, plan_.arguments), thread_);
    collective->inspect_sent(bad_arguments_);
    report_arguments(context(), bad_arguments_);
    collective->expect_received(bad_arguments_);
  });
  if (!is_prepared) return run_untracked();
  redispatch(forget_bound);
  const bool is_followed = run_contained(session_, "following a collective", [&] {
    thread_.counters().count_skipped(Skip::kCollective);
    for_each_result([&](const at::Tensor& result, int64_t) { collective->expect_result(result, bad_arguments_); });
    collective->follow(torch::jit::last(*stack_, plan_.returns));
  });
  if (!is_followed) forget_results();
}

template <typename Results>
void OpCall::run_checked(Results results) {
  const bool is_prepared = run_contained(session_, "checking arguments", [&] {
    save_arguments();
    inspect_arguments();
    report_arguments(context(), bad_arguments_);
    if (!bad_arguments_.empty() && RunAgain::is_possible(plan_)) {
      again_.emplace(op_, plan_, below_, torch::jit::last(*stack_, plan_.arguments).vec());
    }
    if (!Results::kOnDevices && nonfinite_registry().in_use()) prepare_dependent_results();
    prepare(results);
  });
  if (!is_prepared) return run_untracked();
  redispatch([&](const at::Tensor& tensor) { results.forget(tensor); });
  const bool is_checked = run_contained(session_, "checking results", [&] {
    check_results(results);
    const auto tensor_at = [this](size_t argument, int64_t element) { return saved_tensor(argument, element); };
    if (!bad_results_.empty()) results.find_bad_arguments(tensor_at, bad_arguments_);
    attribute_bad_results();
    if (dependent_ != nullptr) dependent_->record(torch::jit::last(*stack_, plan_.returns), thread_.id());
    results.finish();
  });
  if (!is_checked) forget_results();
}

// Not even the arguments could be saved: forgets the bounds of everything that the call may write.
void OpCall::run_untracked() {
  const size_t first = stack_->size() - plan_.arguments;
  for (const OpPlan::MutatedArgument& mutated : plan_.mutated_arguments) {
    forget_all((*stack_)[first + plan_.saved_arguments[mutated.saved_index]]);
  }
  saved_.clear();
  redispatch(forget_bound);
}

void OpCall::attribute_results(torch::jit::Stack& results) {
  save_arguments();
  stack_ = &results;
  for_each_result([this](const at::Tensor& result, int64_t output) { record_bad_result(result, output); });
  attribute_bad_results();
}

void OpCall::attribute_bad_results() {
  if (bad_results_.empty()) return;
  attribute(context(), bad_arguments_, bad_results_);
  record_mask_bounds();
}

// Forgets the bounds of everything that the call writes, because it is not checked.
void OpCall::run_unchecked() {
  if (!run_contained(session_, "saving arguments", [this] { save_arguments(); })) return run_untracked();
  redispatch(forget_bound);
  forget_results();
}

// Records the results of the call as intentional: their consequences raise no alarm.
void OpCall::run_skipped() {
  if (!run_contained(session_, "saving arguments", [this] { save_arguments(); })) return run_untracked();
  redispatch(forget_bound);
  for_each_result([this](const at::Tensor& result, int64_t) { bound_cache().record_ignored(result, &plan_.name); });
}

CallContext OpCall::context() const { return {plan_, saved_, session_, thread_.id(), again_ ? &*again_ : nullptr}; }

void OpCall::save_arguments() {
  const size_t first = stack_->size() - plan_.arguments;
  for (const uint16_t argument : plan_.saved_arguments) saved_.push_back((*stack_)[first + argument]);
}

// Undefined if the call has no such argument.
at::Tensor OpCall::saved_tensor_named(std::string_view name) const {
  for (size_t k = 0; k < saved_.size(); ++k) {
    if (plan_.argument_names[plan_.saved_arguments[k]] == name && saved_[k].isTensor()) return saved_[k].toTensor();
  }
  return {};
}

at::Tensor OpCall::saved_tensor(size_t argument, int64_t element) const {
  at::Tensor found;
  for (size_t k = 0; k < saved_.size(); ++k) {
    if (plan_.saved_arguments[k] != argument) continue;
    for_each_tensor(saved_[k], [&](const at::Tensor& tensor, int64_t index) {
      if (index == element) found = tensor;
    });
  }
  return found;
}

// Finds arguments that are known to be bad, and scans unknown ones that are about to be overwritten, because afterwards
// it is too late. An argument may share memory with a result: x.mul_(x), sqrt(x, out=x).
void OpCall::inspect_arguments() {
  const bool something_is_bad = nonfinite_registry().in_use() || plan_.handling == OpPlan::Handling::kRead;
  if (!something_is_bad && !plan_.writes_in_place()) return;
  if (waits_for_collective(plan_.name)) return;  // the values come during the call
  const StorageRanges overwritten = find_overwritten_storages(something_is_bad);
  if (!something_is_bad && overwritten.empty()) return;
  for (size_t k = 0; k < saved_.size(); ++k) {
    const OpPlan::MutatedArgument* mutated = plan_.mutated_argument_at(k);
    if (mutated != nullptr && !mutated->reads_previous_value) continue;
    for_each_tensor(saved_[k], [&](const at::Tensor& tensor, int64_t element) {
      inspect_argument(tensor, k, element, mutated != nullptr || overwritten.overlap(tensor));
    });
  }
}

void OpCall::prepare_dependent_results() {
  dependent_ = DependentResults::of_call(op_, plan_, below_, session_, bad_arguments_,
                                         torch::jit::last(*stack_, plan_.arguments));
  if (dependent_ != nullptr) dependent_->report_read();
}

// Returns the storages on the host that the call writes; if not `all`, only those that are not known to be finite.
StorageRanges OpCall::find_overwritten_storages(bool all) const {
  StorageRanges storages;
  for (const OpPlan::MutatedArgument& mutated : plan_.mutated_arguments) {
    for_each_tensor(saved_[mutated.saved_index], [&](const at::Tensor& tensor, int64_t) {
      if (!tensor.is_cpu()) return;
      if (all || !bound_cache().is_finite(tensor)) storages.add(tensor);
    });
  }
  storages.sort();
  return storages;
}

void OpCall::inspect_argument(const at::Tensor& argument, size_t saved, int64_t element, bool overwritten) {
  if (argument.unsafeGetTensorImpl()->is_wrapped_number()) return;  // a number, and not a computed value
  const at::Tensor tensor = scannable_values(argument);
  if (!tensor.defined()) return;
  const bool known = nonfinite_registry().in_use() && nonfinite_registry().contains(tensor);
  const bool is_last_chance = overwritten || plan_.handling == OpPlan::Handling::kRead;
  if (!known && !is_last_chance) return;
  const BoundCache::State state = bound_cache().find(tensor).state;
  if (!known && state == BoundCache::State::kFinite) return;
  const std::string& name = plan_.argument_names[plan_.saved_arguments[saved]];
  const auto provenance = known ? nonfinite_registry().find(tensor) : nullptr;
  if (provenance != nullptr && is_exhausted(*provenance)) {  // which non-finite values it holds does not matter
    if (!check_finite(tensor).finite) {
      bad_arguments_.push_back({tensor, name, element, provenance->possible_kinds(), provenance, overwritten});
    }
    return;
  }
  const NonfiniteKinds kinds =
      state == BoundCache::State::kFiniteOrMasked ? NonfiniteKinds::only_neginf() : kinds_of(tensor);
  if (!kinds.any()) return;
  if (!known && argument.is_sparse()) expect_sparse_result(tensor);
  bad_arguments_.push_back(bad_argument(context(), tensor, name, element, kinds, overwritten));
}

template <typename Results>
void OpCall::prepare(Results& results) {
  if (!results.needs_arguments()) return;
  c10::SmallVector<Operand, 12> operands;
  for (const c10::IValue& argument : torch::jit::last(*stack_, plan_.arguments)) operands.push_back(operand(argument));
  results.prepare(operands);
}

// A failed call may have written a part.
template <typename Forget>
void OpCall::redispatch(Forget&& forget) {
  try {
    const DrawingInside drawing(thread_, plan_);
    op_.redispatchBoxed(below_, stack_);
  } catch (...) {
    for (const OpPlan::MutatedArgument& mutated : plan_.mutated_arguments) {
      if (mutated.saved_index >= saved_.size()) continue;
      for_each_tensor(saved_[mutated.saved_index], [&](const at::Tensor& tensor, int64_t) { forget(tensor); });
    }
    throw;
  }
}

void OpCall::forget_results() {
  for_each_result([](const at::Tensor& result, int64_t) { forget_bound(result); });
}

template <typename Results>
void OpCall::check_results(Results& results) {
  for_each_result([&](const at::Tensor& result, int64_t output) { check_result(results, result, output); });
  if constexpr (!Results::kOnDevices) {
    if (results.disproof()) report_disproof(session_, plan_, operands_of_saved(), *results.disproof());
  }
}

// The tensors among the arguments, at their indices in the schema.
c10::SmallVector<Operand, 12> OpCall::operands_of_saved() const {
  c10::SmallVector<Operand, 12> operands(plan_.arguments);
  for (size_t k = 0; k < saved_.size(); ++k) operands[plan_.saved_arguments[k]] = operand(saved_[k]);
  return operands;
}

// Visits the tensors that the call has written, including those in lists.
template <typename Visit>
void OpCall::for_each_result(Visit&& visit) {
  const size_t first = stack_->size() - plan_.returns;
  int64_t output = 0;
  for (const uint16_t r : plan_.checked_returns) output = for_each_output((*stack_)[first + r], output, visit);
  for (const OpPlan::MutatedArgument& mutated : plan_.mutated_arguments) {
    if (!mutated.returned) output = for_each_output(saved_[mutated.saved_index], output, visit);
  }
}

template <typename Results>
void OpCall::check_result(Results& results, const at::Tensor& result, int64_t output) {
  if constexpr (!Results::kOnDevices) {
    if (plan_.has_unwritten_output && output == 1) return;
    if (!result.is_cpu() && record_copy_to_device(results, result, output)) return;
    if (plan_.writes_groups_alone) return check_values(results, written_groups(result), output);
  }
  check_values(results, result, output);
}

// A grouped product ends with its last group. The rows after it, or the columns if `self` has a matrix for each group,
// are memory that nothing has written.
at::Tensor OpCall::written_groups(const at::Tensor& result) const {
  const at::Tensor self = saved_tensor_named("self"), ends = saved_tensor_named("offs");
  const bool has_rest = ends.defined() && is_dense_on_host(*ends.unsafeGetTensorImpl()) && ends.numel() > 0 &&
                        ends.scalar_type() == c10::ScalarType::Int && ends.is_contiguous() && result.dim() == 2 &&
                        is_dense_on_host(*result.unsafeGetTensorImpl());
  if (!has_rest) return result;
  const int64_t end = std::max(ends.const_data_ptr<int>()[ends.numel() - 1], 0);
  const int64_t dim = self.dim() == 2 ? 0 : 1;
  if (end >= result.size(dim)) return result;
  bound_cache().record_uninitialized(result, runtime().current_stack_id(), &plan_.name);
  MemoryRegion written(result);
  written.sizes[static_cast<size_t>(dim)] = end;
  return written.tensor_in(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage_of(result)));
}

template <typename Results>
void OpCall::check_values(Results& results, const at::Tensor& result, int64_t output) {
  switch (results.check(result, output, !bad_arguments_.empty())) {
    case Outcome::kNonFinite:
      record_bad_result(result, output);
      break;
    case Outcome::kFiniteOrMasked:
      propagate_unscanned(context(), bad_arguments_, result, /*is_pending=*/false);
      break;
    case Outcome::kFinite:
      if (plan_.proves_nonnegative_input) record_sign_of_argument(output);
      break;
    case Outcome::kSkipped:
      if (may_move_bytes(plan_)) record_moved_bytes(plan_, operands_of_saved(), result, output);
      break;
    case Outcome::kDeferred:
      break;
  }
}

// The keys of a call do not show that it copies to a device. Returns false if it does not.
bool OpCall::record_copy_to_device(HostResults& results, const at::Tensor& result, int64_t output) {
  if (!scannable(result)->defined()) return false;
  DeviceCheck device(plan_, thread_, session_);
  device.record_arguments(operands_of_saved());
  if (!device.add_result(result, output, results.predict(result, output))) return false;
  device.finish();
  return true;
}

void OpCall::record_bad_result(const at::Tensor& result, int64_t output) {
  const at::Tensor tensor = scannable_values(result);
  if (!tensor.defined()) return;
  if (auto inherited = exhausted_provenance(context(), bad_arguments_, output)) {
    const NonfiniteKinds kinds = inherited->possible_kinds();
    bad_results_.push_back({tensor, kinds, output, std::move(inherited)});
    return;
  }
  const NonfiniteKinds kinds = kinds_of(tensor);
  if (kinds.any()) bad_results_.push_back({tensor, kinds, output});
}

// Of the first argument, or of its element for this output.
void OpCall::record_sign_of_argument(int64_t output) {
  for_each_output(saved_[0], 0, [&](const at::Tensor& argument, int64_t index) {
    if (index == output) record_proved_sign(plan_, argument);
  });
}

// A tensor that is intentionally -inf and otherwise finite can be bounded too.
void OpCall::record_mask_bounds() {
  for (const Result& bad : bad_results_) {
    if (bad.kinds != NonfiniteKinds::only_neginf() || range_of(bad.tensor.scalar_type()).limit == 0) continue;
    const auto provenance = nonfinite_registry().find(bad.tensor);
    if (provenance == nullptr || !provenance->is_intentional()) continue;
    record_bound(thread_, plan_, bad.tensor, {largest_finite(bad.tensor), false, true});
  }
}

}  // namespace torchnan
