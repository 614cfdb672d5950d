#include "origin/harm.h"

#include <functional>
#include <map>

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/node.h>

#include "check/blame.h"
#include "check/tensor_check.h"
#include "device/resolve.h"
#include "intercept/op_plan.h"
#include "origin/ask.h"
#include "origin/make_finding.h"
#include "origin/roots.h"
#include "origin/site_here.h"
#include "origin/unused_results.h"
#include "host/messenger.h"
#include "report/deliver.h"
#include "watch/contain.h"
#include "watch/thread_state.h"

namespace torchnan {
namespace {

bool wants(const Watch& watch, Kinds kinds) {
  return (kinds.nan() && watch.options().check_nan) || (kinds.inf() && watch.options().check_inf);
}

// What was computed with values like these was finite, or they have not been computed with.
bool is_mask(const Cause& cause) {
  const Root& root = *cause.root;
  if (root.source == Root::Source::kOperation) {
    const bool is_gradient = !root.site.node.empty();
    const bool served = root.computed && !root.spread && !cause.first_computation;
    return served && !is_gradient && root.kinds == Kinds::of_neginf();
  }
  if (root.unwritten || root.foreign || root.parameter) return false;
  return !cause.kinds.nan() || !cause.first_computation;
}

// A mask does no harm by being held or looked at.
bool is_harmless(const Cause& cause, HarmKind kind) {
  if (kind == HarmKind::kAlive) return is_mask(cause);
  if (cause.root->source == Root::Source::kOperation) return false;
  return (kind == HarmKind::kRead || kind == HarmKind::kOptimizerState) && is_mask(cause);
}

// A loss scaler leaves out the step; what is in the weights nevertheless is another matter.
bool is_excused(const Root& root, HarmKind kind) {
  if (root.excused) return true;
  return root.scaled && kind != HarmKind::kParameter && kind != HarmKind::kOptimizerState;
}

// Of what is harmed; asked for only when there is something to tell.
using Name = std::function<std::string()>;

Harm harm_at(const Site& site, HarmKind kind, const Name& name, const Watch& watch) {
  Harm harm;
  harm.kind = kind;
  contain(watch, "naming what is harmed", [&] { harm.name = name ? name() : ""; });
  const Place place = ask_place(site, watch);
  if (!place.stack.empty()) {
    harm.file = place.stack.front().file;
    harm.line = place.stack.front().line;
  }
  return harm;
}

Harm harm_here(HarmKind kind, const Name& name, const Watch& watch) {
  Site site;
  site.live = program().capture();
  return harm_at(site, kind, name, watch);
}

Harm harm_of_nobody() {
  Harm harm;
  harm.kind = HarmKind::kUnused;
  return harm;
}

// The cause that is to be told, if there is one. One alarm per cause: it is not told again, unless telling fails.
const Cause* accused(const Watch& watch, const Record& record, HarmKind kind, Kinds kinds) {
  if (!wants(watch, kinds)) return nullptr;
  for (const Cause& cause : record.causes()) {
    if (is_harmless(cause, kind)) continue;
    if (is_excused(*cause.root, kind) || cause.root->reported.exchange(true)) return nullptr;
    return &cause;
  }
  return nullptr;
}

void judge(Watch& watch, const Record& record, HarmKind kind, Kinds kinds, const Name& name = nullptr) {
  const Cause* cause = accused(watch, record, kind, kinds);
  if (cause == nullptr) return;
  try {
    deliver(watch, make_finding(*cause, Level::kError, harm_here(kind, name, watch), watch));
  } catch (const MeantForProgram&) {
    throw;
  } catch (...) {  // nobody has been told: its next harm will
    cause->root->reported = false;
    throw;
  }
}

std::string parameter_name(const Watch& watch, const at::Tensor& tensor) {
  const auto owner = owner_of(tensor, true, watch);
  return owner ? owner->name : "";
}

// Readers that are no operators, in the place of one. Never destroyed: records point to them.
const OpPlan& plan_of_reader(const char* name) {
  auto* plan = new OpPlan;
  plan->name = name;
  return *plan;
}
const OpPlan& backward_call = plan_of_reader("autograd::backward");
const OpPlan& guard_call = plan_of_reader("torchnan::guard");
const OpPlan& optimizer_step = plan_of_reader("optimizer::step");

CallFacts facts_of(const OpPlan& reader, Watch& watch) { return {reader, {}, watch, ThreadState::here().id()}; }

bool is_optimizer_step(const CallFacts& call) {
  return ask_place(site_here(call.watch, call.thread), call.watch).phase == Phase::kOptimizer;
}

}  // namespace

std::optional<Finding> accuse(Watch& watch, const Record& record, HarmKind kind, Kinds kinds, const Site& site,
                              const std::string& name) {
  const Cause* cause = accused(watch, record, kind, kinds);
  if (cause == nullptr) return std::nullopt;
  Site live;
  live.live = site.live;
  return make_finding(*cause, Level::kError, harm_at(live, kind, [&] { return name; }, watch), watch);
}

void judge_before(const CallFacts& call, c10::ArrayRef<BadArgument> bad_arguments) {
  for (const BadArgument& argument : bad_arguments) {
    for (const Cause& cause : argument.record->causes()) {
      cause.root->used = true;
      if (call.plan.scaler_test) cause.root->scaled = true;
      if (call.plan.compares) cause.root->compared = true;
      if (!call.plan.compares && !call.plan.moves_values) cause.root->computed = true;
    }
    if (call.plan.course == OpPlan::Course::kRead) judge(call.watch, *argument.record, HarmKind::kRead, argument.kinds);
  }
}

void judge_result(const CallFacts& call, const Result& result, const Lineage::RecordPtr& record) {
  const Cause& first = record->first();
  if (call.watch.options().when == When::kOrigin && first.steps.empty() && !first.root->deliberate()) {
    judge(call.watch, *record, HarmKind::kOrigin, result.kinds);
  }
  // Who else writes into a weight may still clean it: an initialiser, a loader. Its use will tell, or its end.
  if (is_parameter(result.tensor) && !first.root->reported && is_optimizer_step(call)) {
    judge(call.watch, *record, HarmKind::kParameter, result.kinds,
          [&] { return parameter_name(call.watch, result.tensor); });
  }
}

void judge_use(const CallFacts& call, c10::ArrayRef<BadArgument> bad_arguments) {
  for (const BadArgument& argument : bad_arguments) {
    const bool was_made = argument.record->first().root->source == Root::Source::kOperation;
    if (!was_made || argument.overwritten || !is_parameter(argument.tensor)) continue;
    if (argument.record->first().root->reported) continue;
    const std::string name = parameter_name(call.watch, argument.tensor);
    if (name.empty()) continue;  // a leaf of the program's own, no weight: what becomes of it will tell
    judge(call.watch, *argument.record, HarmKind::kParameter, argument.kinds, [&] { return name; });
  }
}

// A root that is a view of a scalar has no operation in its own node; the scalar stands for it.
void judge_beginning_of_backward(Watch& watch) {
  if (program().tells_roots()) return;
  const auto node = torch::autograd::get_current_node();
  const auto* inner = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (node == nullptr || inner == nullptr) return;
  const bool is_inner = inner->count(node.get()) != 0;
  for (const Lineage::Alive& made : lineage().made_by(*node)) {
    if (is_inner && made.tensor.numel() != 1) continue;
    judge(watch, *made.record, HarmKind::kBackward, kinds_of(made.tensor));
  }
}

void judge_roots(Watch& watch, c10::ArrayRef<at::Tensor> roots, c10::ArrayRef<at::Tensor> gradients) {
  const auto judge_root = [&](size_t i) {
    const at::Tensor root = roots[i].defined() ? readable(roots[i]) : at::Tensor();
    if (!root.defined() || check_finite(root).finite) return;
    const at::Tensor gradient = i < gradients.size() && gradients[i].defined() ? readable(gradients[i]) : at::Tensor();
    const bool is_weighed = gradient.defined() && gradient.sizes() == root.sizes();
    const Kinds kinds = is_weighed ? kinds_where_nonzero(root, gradient) : kinds_of(root);
    if (!kinds.any()) return;
    judge(watch, *record_of_argument(facts_of(backward_call, watch), root, kinds), HarmKind::kBackward, kinds);
  };
  for (size_t i = 0; i < roots.size(); ++i) contain(watch, "judging a root of backward", [&] { judge_root(i); });
  contain(watch, "judging roots of backward on devices",
          [&] { judge_on_devices(watch, HarmKind::kBackward, backward_call, roots); });
}

void judge_tensors(Watch& watch, HarmKind kind, c10::ArrayRef<at::Tensor> tensors,
                   const std::function<std::string(size_t)>& name_of) {
  contain(watch, "judging tensors on devices", [&] { judge_on_devices(watch, kind, optimizer_step, tensors); });
  if (!lineage().in_use()) return;
  const auto judge_tensor = [&](size_t i) {
    const at::Tensor tensor = tensors[i].defined() ? readable(tensors[i]) : at::Tensor();
    if (!tensor.defined() || !lineage().knows(tensor) || check_finite(tensor).finite) return;
    const Kinds kinds = kinds_of(tensor);
    if (const auto record = lineage().find(tensor)) judge(watch, *record, kind, kinds, [&] { return name_of(i); });
  };
  for (size_t i = 0; i < tensors.size(); ++i) contain(watch, "judging a tensor", [&] { judge_tensor(i); });
}

void judge_guard(Watch& watch, const at::Tensor& guarded, const std::string& name) {
  contain(watch, "judging what is guarded on a device",
          [&] { judge_on_devices(watch, HarmKind::kGuard, guard_call, guarded); });
  const at::Tensor tensor = readable(guarded);
  if (!tensor.defined() || check_finite(tensor).finite) return;
  contain(watch, "judging what is guarded", [&] {
    const Kinds kinds = kinds_of(tensor);
    const CallFacts guard = facts_of(guard_call, watch);
    // Outside every scope nothing is remembered: nobody would forget it again.
    const auto record = open_scopes() > 0 ? record_of_argument(guard, tensor, kinds)
                                          : std::make_shared<Record>(Cause{external_root(guard, tensor, kinds), kinds});
    judge(watch, *record, HarmKind::kGuard, kinds, [&] { return name; });
  });
}

namespace {

// By age: what the program still holds.
void accuse_what_is_held(Watch& watch, std::map<uint64_t, Finding>& errors) {
  std::vector<at::Tensor> alive;
  for (Lineage::Alive& one : lineage().alive()) alive.push_back(std::move(one.tensor));
  for (const Held& held : ask_held(alive, watch)) {
    const at::Tensor tensor = readable(held.tensor);
    const Kinds kinds = tensor.defined() ? kinds_of(tensor) : Kinds();
    const auto record = kinds.any() ? lineage().find(tensor) : nullptr;
    if (record == nullptr || record->first().root->watch.lock().get() != &watch) continue;
    if (is_inherited(*record->first().root)) continue;
    // The program has looked at the gradient and left out the step.
    if (held.as_gradient && record->first().root->compared) continue;
    const HarmKind kind = is_parameter(held.tensor) ? HarmKind::kParameter : HarmKind::kAlive;
    const Cause* cause = accused(watch, *record, kind, kinds);
    if (cause == nullptr) continue;
    const Harm harm = harm_here(kind, [&] { return parameter_name(watch, tensor); }, watch);
    errors.emplace(record->first().root->sequence, make_finding(*cause, Level::kError, harm, watch));
  }
}

}  // namespace

void judge_end(Watch& watch) {
  std::map<uint64_t, Finding> by_age;
  std::vector<Finding> findings;
  contain(watch, "judging what is still held", [&] { accuse_what_is_held(watch, by_age); });
  contain(watch, "telling what was never used", [&] {
    for (auto& [age, finding] : by_age) findings.push_back(std::move(finding));
    for (const Lineage::RecordPtr& record : take_unused(watch)) {
      if (!wants(watch, record->first().root->kinds) || is_inherited(*record->first().root)) continue;
      findings.push_back(make_finding(record->first(), Level::kWarning, harm_of_nobody(), watch));
    }
  });
  contain(watch, "telling of findings", [&] { deliver_all(watch, std::move(findings)); });
}

}  // namespace torchnan
