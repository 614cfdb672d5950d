#include "intercept/typed_call.h"

#include <algorithm>

#include "check/bounds/bound_cache.h"
#include "intercept/disproof.h"
#include "intercept/op_entry.h"
#include "intercept/op_call.h"
#include "origin/moved_bytes.h"
#include "origin/nonfinite_registry.h"
#include "detection/error_containment.h"
#include "check/scan/storage_ranges.h"
#include "check/scan/tensor_scan.h"

namespace torchnan {

namespace {

bool is_known_to_be_bad(const Operand& argument) {
  return argument.kind == Operand::Kind::kTensor && argument.tensor->has_storage() &&
         nonfinite_registry().contains(*argument.tensor);
}

// Whether a value that user code reads is a number. On a device, the device checks it.
bool is_read_finite(const Operand& argument) {
  if (argument.kind != Operand::Kind::kTensor) return true;
  const ScanResult read = check_finite(*argument.tensor);
  return read.skip != Skip::kNone || read.finite;
}

bool shares_memory(const Operand& argument, c10::ArrayRef<Operand> arguments) {
  const StorageRange memory = storage_range(*argument.tensor);
  return std::any_of(arguments.begin(), arguments.end(), [&](const Operand& other) {
    return &other != &argument && other.kind == Operand::Kind::kTensor && storage_range(*other.tensor).overlaps(memory);
  });
}

}  // namespace

void record_view(ThreadState& thread) {
  DetectionSession* const session = thread.session();
  if (session == nullptr) return;
  run_contained(*session, "recording a call site", [&] {
    record_op_entry(thread, *session);
    check_backward_start(thread, *session);
  });
}

bool UnboxedCall::try_start(const OpPlan& plan, c10::ArrayRef<Operand> arguments, c10::DispatchKeySet keys) {
  plan_ = &plan;
  if (checking_of(plan, session_) != Checking::kOn) return false;
  if (nonfinite_registry().in_use() && std::any_of(arguments.begin(), arguments.end(), is_known_to_be_bad))
    return false;
  if (plan_->handling == OpPlan::Handling::kRead && !is_read_finite(arguments[0])) return false;
  for (const OpPlan::MutatedArgument& mutated : plan_->mutated_arguments) {
    const Operand& argument = arguments[plan_->saved_arguments[mutated.saved_index]];
    if (argument.kind != Operand::Kind::kTensor || !argument.tensor->is_cpu()) continue;
    if (!mutated.reads_previous_value && !shares_memory(argument, arguments)) continue;
    if (!bound_cache().is_finite(*argument.tensor)) return false;
  }
  SiteId site = 0;
  run_contained(session_, "recording a call site", [&] {
    site = record_op_entry(thread_, session_);
    check_backward_start(thread_, session_);
  });
  if (!DeviceResults::concerns(keys)) {
    on_host_.emplace(plan, thread_, session_, site).prepare(arguments);
    return true;
  }
  on_device_.emplace(plan, thread_, session_, site);
  run_contained(session_, "checking arguments on a device", [&] { on_device_->prepare(arguments); });
  return true;
}

void UnboxedCall::take_over(const OpPlan& plan) {
  plan_ = &plan;
  on_host_.emplace(plan, thread_, session_, 0);
}

bool UnboxedCall::check_results(c10::ArrayRef<const at::Tensor*> results, c10::ArrayRef<Operand> arguments,
                                size_t first) {
  if (on_host_) run_contained(session_, "tightening bounds", [&] { on_host_->tighten(arguments, results); });
  const bool all_finite = on_device_ ? check_each(*on_device_, results, arguments, first)
                                     : check_each(*on_host_, results, arguments, first);
  if (on_device_) run_contained(session_, "resolving device results", [this] { on_device_->finish(); });
  if (on_host_ && on_host_->disproof()) [[unlikely]]
    report_disproof(session_, *plan_, arguments, *on_host_->disproof());
  if (all_finite && arguments[0].kind == Operand::Kind::kTensor) record_proved_sign(*plan_, *arguments[0].tensor);
  return all_finite;
}

template <typename Results>
bool UnboxedCall::check_each(Results& checks, c10::ArrayRef<const at::Tensor*> results,
                             c10::ArrayRef<Operand> arguments, size_t first) {
  bool all_finite = true;
  for (size_t output = first; output < results.size(); ++output) {
    if (!results[output]->defined()) continue;
    const bool is_checked = run_contained(session_, "checking results", [&] {
      const auto index = static_cast<int64_t>(output);
      const Outcome outcome = checks.check(*results[output], index, false);
      all_finite &= outcome != Outcome::kNonFinite;
      if (outcome == Outcome::kSkipped && may_move_bytes(*plan_))
        record_moved_bytes(*plan_, arguments, *results[output], index);
    });
    if (!is_checked) bound_cache().forget(*results[output]);
  }
  return all_finite;
}

void UnboxedCall::forget(c10::ArrayRef<Operand> arguments) noexcept {
  const auto forget_tensor = [this](const Operand& argument) {
    if (argument.kind != Operand::Kind::kTensor) return;
    bound_cache().forget(*argument.tensor);
    if (on_device_) on_device_->forget(*argument.tensor);
  };
  if (plan_ == nullptr) {
    std::for_each(arguments.begin(), arguments.end(), forget_tensor);
    return;
  }
  for (const OpPlan::MutatedArgument& mutated : plan_->mutated_arguments) {
    forget_tensor(arguments[plan_->saved_arguments[mutated.saved_index]]);
  }
}

void UnboxedCall::attribute_results(const c10::OperatorHandle& op, Box box) {
  run_contained(session_, "attributing a result", [&] {
    auto [arguments, results] = box();
    OpCall(op, *plan_, {}, &arguments, thread_, session_).attribute_results(results);
  });
}

}  // namespace torchnan
