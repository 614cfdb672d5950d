#include "origin/harm.h"

#include <map>
#include <mutex>

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/node.h>

#include "check/tensor_check.h"
#include "intercept/op_plan.h"
#include "origin/make_finding.h"
#include "origin/roots.h"
#include "origin/unused_results.h"
#include "report/deliver.h"
#include "watch/thread_state.h"

namespace torchnan {
namespace {

bool wants(const Watch& watch, Kinds kinds) {
  return (kinds.nan() && watch.options().check_nan) || (kinds.inf() && watch.options().check_inf);
}

// Values that are there on purpose do no harm by being held or looked at, as long as nobody has computed a NaN.
bool is_harmless(const Record& record, HarmKind kind, Kinds kinds) {
  const Root& root = *record.root();
  if (kind != HarmKind::kAlive && kind != HarmKind::kRead) return false;
  if (root.source == Root::Source::kOperation || root.unwritten || root.foreign || root.parameter) return false;
  return !kinds.nan() || record.first_computation() == nullptr;
}

Harm harm_here(HarmKind kind, std::string name, const Watch& watch) {
  Harm harm;
  harm.kind = kind;
  harm.name = std::move(name);
  Site site;
  site.live = program().capture();
  const Place place = program().place(site, watch);
  if (!place.stack.empty()) {
    harm.file = place.stack.front().file;
    harm.line = place.stack.front().line;
  }
  return harm;
}

Harm harm_of_nobody() {
  Harm harm;
  harm.kind = HarmKind::kUnused;
  return harm;
}

// One alarm per cause; none for what a loss scaler has dealt with.
std::optional<Finding> accuse(Watch& watch, const Record& record, HarmKind kind, Kinds kinds, std::string name) {
  Root& root = *record.root();
  if (!wants(watch, kinds) || is_harmless(record, kind, kinds)) return std::nullopt;
  if (root.excused) return std::nullopt;
  if (root.reported.exchange(true)) return std::nullopt;
  return make_finding(record, Level::kError, harm_here(kind, std::move(name), watch), watch);
}

void judge(Watch& watch, const Record& record, HarmKind kind, Kinds kinds, std::string name = "") {
  if (auto finding = accuse(watch, record, kind, kinds, std::move(name))) deliver(watch, std::move(*finding));
}

std::string parameter_name(const Watch& watch, const at::Tensor& tensor) {
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (const auto named = watch.named_owner(storage)) return named->name;
  const auto owner = program().owner(storage, program().capture(), watch);
  return owner ? owner->name : "";
}

// A reader that is no operator, in the place of one.
CallFacts reader(const char* name, Watch& watch) {
  static auto* plans = new std::map<std::string, OpPlan>;  // never destroyed: records point to its entries
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  OpPlan& plan = (*plans)[name];
  plan.name = name;
  return {plan, {}, watch, ThreadState::here().id()};
}

}  // namespace

void judge_before(const CallFacts& call, c10::ArrayRef<BadArgument> bad_arguments) {
  for (const BadArgument& argument : bad_arguments) {
    argument.record->root()->used = true;
    if (call.plan.course == OpPlan::Course::kRead) {
      judge(call.watch, *argument.record, HarmKind::kRead, argument.kinds);
    } else if (call.plan.scaler_test) {
      argument.record->root()->excused = true;
    } else if (is_parameter(argument.tensor) && argument.record->root()->source == Root::Source::kOperation) {
      judge(call.watch, *argument.record, HarmKind::kParameter, argument.kinds,
            parameter_name(call.watch, argument.tensor));
    }
  }
}

void judge_result(const CallFacts& call, const Result& result, const Lineage::RecordPtr& record) {
  if (call.watch.options().when == When::kOrigin && record->steps().empty() && !record->root()->deliberate()) {
    judge(call.watch, *record, HarmKind::kOrigin, result.kinds);
  }
  // A mask that is written into a weight does nothing yet.
  const bool is_meant = record->root()->deliberate() && call.plan.moves_values;
  if (is_parameter(result.tensor) && !is_meant) {
    judge(call.watch, *record, HarmKind::kParameter, result.kinds, parameter_name(call.watch, result.tensor));
  }
}

// A root that is a view of a scalar has no operation in its own node; the scalar stands for it.
void judge_beginning_of_backward(Watch& watch) {
  const auto node = torch::autograd::get_current_node();
  const auto* inner = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (node == nullptr || inner == nullptr) return;
  const bool is_inner = inner->count(node.get()) != 0;
  for (const Lineage::Alive& made : lineage().made_by(*node)) {
    if (is_inner && made.tensor.numel() != 1) continue;
    judge(watch, *made.record, HarmKind::kBackward, kinds_of(made.tensor));
  }
}

void judge_tensors(Watch& watch, HarmKind kind, c10::ArrayRef<at::Tensor> tensors,
                   const std::vector<std::string>& names) {
  const bool known_only = kind != HarmKind::kBackward;
  if (known_only && !lineage().in_use()) return;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined()) continue;
    const at::Tensor tensor = readable(tensors[i]);
    if (!tensor.defined() || (known_only && !lineage().knows(tensor)) || check_finite(tensor).finite) continue;
    const Kinds kinds = kinds_of(tensor);
    const auto record = record_of_argument(reader("autograd::backward", watch), tensor, kinds);
    judge(watch, *record, kind, kinds, i < names.size() ? names[i] : "");
  }
}

void judge_guard(Watch& watch, const at::Tensor& guarded, const std::string& name) {
  const at::Tensor tensor = readable(guarded);
  if (!tensor.defined() || check_finite(tensor).finite) return;
  const Kinds kinds = kinds_of(tensor);
  const CallFacts guard = reader("torchnan::guard", watch);
  // Outside every scope nothing is remembered: nobody would forget it again.
  const auto record = open_scopes() > 0 ? record_of_argument(guard, tensor, kinds)
                                        : std::make_shared<Record>(external_root(guard, tensor, kinds));
  judge(watch, *record, HarmKind::kGuard, kinds, name);
}

void judge_end(Watch& watch) {
  const std::vector<Lineage::Alive> alive = lineage().alive();
  std::vector<at::Tensor> tensors;
  for (const Lineage::Alive& one : alive) tensors.push_back(one.tensor);
  std::vector<Finding> findings;
  for (const size_t i : program().held(tensors)) {
    if (alive[i].record->root()->watch.lock().get() != &watch) continue;
    if (auto error = accuse(watch, *alive[i].record, HarmKind::kAlive, kinds_of(tensors[i]), "")) {
      findings.push_back(std::move(*error));
    }
  }
  for (const Lineage::RecordPtr& record : take_unused(watch)) {
    if (!wants(watch, record->root()->kinds)) continue;
    findings.push_back(make_finding(*record, Level::kWarning, harm_of_nobody(), watch));
  }
  deliver_all(watch, std::move(findings));
}

}  // namespace torchnan
