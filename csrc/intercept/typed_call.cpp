#include "intercept/typed_call.h"

#include <algorithm>

#include "bounds/ledger.h"
#include "intercept/arrival.h"
#include "intercept/op_call.h"
#include "origin/lineage.h"

namespace torchnan {

namespace {

bool is_known_to_be_bad(const Operand& argument) {
  return argument.kind == Operand::Kind::kTensor && argument.tensor->has_storage() && lineage().knows(*argument.tensor);
}

}  // namespace

bool PlainCall::begins(c10::ArrayRef<Operand> arguments) {
  if (watch_ == nullptr || !watch_->options().skip_ops.empty() || !watches_this_pass(*watch_)) return false;
  if (lineage().in_use() && std::any_of(arguments.begin(), arguments.end(), is_known_to_be_bad)) return false;
  for (const OpPlan::Written& written : plan_.written) {
    const Operand& argument = arguments[plan_.kept_arguments[written.kept]];
    if (!written.reads_old_values || argument.kind != Operand::Kind::kTensor) continue;
    if (ledger().find(*argument.tensor).known != Ledger::Known::kFinite) return false;
  }
  note_arrival(thread_, *watch_);
  check_.emplace(plan_, thread_, *watch_);
  check_->bound_results(arguments);
  return true;
}

bool PlainCall::ends_well(c10::ArrayRef<const at::Tensor*> results, const at::Tensor* first_argument) {
  bool all_is_well = true;
  for (size_t output = 0; output < results.size(); ++output) {
    if (!results[output]->defined()) continue;
    const auto outcome = check_->judge(*results[output], static_cast<int64_t>(output), false);
    all_is_well &= outcome != ResultCheck::Outcome::kNonFinite;
  }
  if (all_is_well && plan_.vouches_for_sign && first_argument != nullptr) ledger().note_nonnegative(*first_argument);
  return all_is_well;
}

void PlainCall::forget(c10::ArrayRef<Operand> arguments) {
  for (const OpPlan::Written& written : plan_.written) {
    const Operand& argument = arguments[plan_.kept_arguments[written.kept]];
    if (argument.kind == Operand::Kind::kTensor) ledger().forget(*argument.tensor);
  }
}

void PlainCall::explain(const c10::OperatorHandle& op, torch::jit::Stack arguments, torch::jit::Stack results) {
  OpCall(op, plan_, {}, &arguments, thread_, *watch_).explain(results);
}

}  // namespace torchnan
