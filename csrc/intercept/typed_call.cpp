#include "intercept/typed_call.h"

#include <algorithm>

#include "bounds/ledger.h"
#include "intercept/arrival.h"
#include "intercept/op_call.h"
#include "origin/lineage.h"
#include "watch/contain.h"

namespace torchnan {

namespace {

bool is_known_to_be_bad(const Operand& argument) {
  return argument.kind == Operand::Kind::kTensor && argument.tensor->has_storage() && lineage().knows(*argument.tensor);
}

}  // namespace

bool PlainCall::begins(const OpPlan& plan, c10::ArrayRef<Operand> arguments, c10::DispatchKeySet keys) {
  plan_ = &plan;
  if (!watch_->options().skip_ops.empty() || !watches_this_pass(*watch_)) return false;
  if (lineage().in_use() && std::any_of(arguments.begin(), arguments.end(), is_known_to_be_bad)) return false;
  for (const OpPlan::Written& written : plan_->written) {
    const Operand& argument = arguments[plan_->kept_arguments[written.kept]];
    if (!written.reads_old_values || argument.kind != Operand::Kind::kTensor) continue;
    if (!argument.tensor->is_cpu()) continue;
    if (ledger().find(*argument.tensor).known != Ledger::Known::kFinite) return false;
  }
  check_.emplace(*plan_, thread_, *watch_);
  contain(*watch_, "noting an operation", [this] { check_->note_site(note_arrival(thread_, *watch_)); });
  if (DeviceCheck::concerns(keys)) {
    contain(*watch_, "looking at what is on a device",
            [&] { device_.emplace(plan, thread_, *watch_).before(arguments); });
  }
  check_->bound_results(arguments, device_ ? &*device_ : nullptr);
  return true;
}

bool PlainCall::is_on_device(const at::Tensor& result, int64_t output) {
  if (!result.is_cpu()) return device_->after(result, output, check_->proof_of(result, output));
  if (device_->reads_devices()) check_->forget_bounds();
  return false;
}

bool PlainCall::ends_well(c10::ArrayRef<const at::Tensor*> results, const at::Tensor* first_argument) {
  bool all_is_well = true;
  for (size_t output = 0; output < results.size(); ++output) {
    if (!results[output]->defined()) continue;
    const bool is_judged = contain(*watch_, "looking at results", [&] {
      if (device_ && is_on_device(*results[output], static_cast<int64_t>(output))) return;
      const auto outcome = check_->judge(*results[output], static_cast<int64_t>(output), false);
      all_is_well &= outcome != ResultCheck::Outcome::kNonFinite;
    });
    if (!is_judged) ledger().forget(*results[output]);
  }
  if (device_) contain(*watch_, "looking at what devices have found", [this] { device_->finish(); });
  if (all_is_well && plan_->vouches_for_sign && first_argument != nullptr) ledger().note_nonnegative(*first_argument);
  return all_is_well;
}

void PlainCall::forget(c10::ArrayRef<Operand> arguments) noexcept {
  const auto forget_tensor = [this](const Operand& argument) {
    if (argument.kind != Operand::Kind::kTensor) return;
    ledger().forget(*argument.tensor);
    if (device_) device_->forget(*argument.tensor);
  };
  if (plan_ == nullptr) {
    std::for_each(arguments.begin(), arguments.end(), forget_tensor);
    return;
  }
  for (const OpPlan::Written& written : plan_->written) {
    forget_tensor(arguments[plan_->kept_arguments[written.kept]]);
  }
}

void PlainCall::explain(const c10::OperatorHandle& op, Box box) {
  contain(*watch_, "explaining a result", [&] {
    auto [arguments, results] = box();
    OpCall(op, *plan_, {}, &arguments, thread_, *watch_).explain(results);
  });
}

}  // namespace torchnan
