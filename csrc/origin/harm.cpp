#include "origin/harm.h"

#include <functional>
#include <map>

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/node.h>

#include "origin/elementwise_attribution.h"
#include "scan/tensor_scan.h"
#include "device/resolve.h"
#include "operators/op_plan.h"
#include "origin/host_queries.h"
#include "origin/make_finding.h"
#include "origin/origin_records.h"
#include "call_sites/current_call_site.h"
#include "origin/unused_results.h"
#include "host/user_notifier.h"
#include "detection/delivery.h"
#include "detection/error_containment.h"
#include "detection/thread_state.h"

namespace torchnan {
namespace {

bool wants(const DetectionSession& session, NonfiniteKinds kinds) {
  return (kinds.nan() && session.options().check_nan) || (kinds.inf() && session.options().check_inf);
}

// What was computed with values like these was finite, or they have not been computed with.
bool is_mask(const Cause& cause) {
  const OriginRecord& root = *cause.root;
  if (root.source == OriginRecord::Source::kOperation) {
    const bool is_gradient = !root.site.node.empty();
    const bool served = root.computed && !root.spread && !cause.first_computation;
    return served && !is_gradient && root.kinds == NonfiniteKinds::of_neginf();
  }
  if (root.unwritten || root.foreign || root.parameter) return false;
  return !cause.kinds.nan() || !cause.first_computation;
}

// A mask does no harm by being held or looked at.
bool is_harmless(const Cause& cause, HarmKind kind) {
  if (kind == HarmKind::kAlive) return is_mask(cause);
  if (cause.root->source == OriginRecord::Source::kOperation) return false;
  return (kind == HarmKind::kRead || kind == HarmKind::kOptimizerState) && is_mask(cause);
}

// A loss scaler leaves out the step; what is in the weights nevertheless is another matter.
bool is_excused(const OriginRecord& root, HarmKind kind) {
  if (root.excused) return true;
  return root.scaled && kind != HarmKind::kParameter && kind != HarmKind::kOptimizerState;
}

// Of what is harmed; asked for only when there is something to tell.
using Name = std::function<std::string()>;

Harm harm_at(const Site& site, HarmKind kind, const Name& name, const DetectionSession& session) {
  Harm harm;
  harm.kind = kind;
  contain(session, "naming what is harmed", [&] { harm.name = name ? name() : ""; });
  const Place place = query_site(site, session);
  if (!place.stack.empty()) {
    harm.file = place.stack.front().file;
    harm.line = place.stack.front().line;
  }
  return harm;
}

Harm harm_here(HarmKind kind, const Name& name, const DetectionSession& session) {
  Site site;
  site.live = program().capture();
  return harm_at(site, kind, name, session);
}

Harm unattributed_harm() {
  Harm harm;
  harm.kind = HarmKind::kUnused;
  return harm;
}

// The cause that is to be told, if there is one. One alarm per cause: it is not told again, unless telling fails.
const Cause* reported(const DetectionSession& session, const Provenance& record, HarmKind kind, NonfiniteKinds kinds) {
  if (!wants(session, kinds)) return nullptr;
  for (const Cause& cause : record.causes()) {
    if (is_harmless(cause, kind)) continue;
    if (is_excused(*cause.root, kind) || cause.root->reported.exchange(true)) return nullptr;
    return &cause;
  }
  return nullptr;
}

void judge(DetectionSession& session, const Provenance& record, HarmKind kind, NonfiniteKinds kinds,
           const Name& name = nullptr) {
  const Cause* cause = reported(session, record, kind, kinds);
  if (cause == nullptr) return;
  try {
    deliver(session, make_finding(*cause, Level::kError, harm_here(kind, name, session), session));
  } catch (const UserFacingException&) {
    throw;
  } catch (...) {  // nobody has been told: its next harm will
    cause->root->reported = false;
    throw;
  }
}

std::string parameter_name(const DetectionSession& session, const at::Tensor& tensor) {
  const auto owner = owner_of(tensor, true, session);
  return owner ? owner->name : "";
}

// Readers that are no operators, in the place of one. Never destroyed: records point to them.
const OpPlan& consumer_plan(const char* name) {
  auto* plan = new OpPlan;
  plan->name = name;
  return *plan;
}
const OpPlan& backward_call = consumer_plan("autograd::backward");
const OpPlan& guard_call = consumer_plan("torchnan::guard");
const OpPlan& optimizer_step = consumer_plan("optimizer::step");

CallContext facts_of(const OpPlan& reader, DetectionSession& session) {
  return {reader, {}, session, ThreadState::current().id()};
}

bool is_optimizer_step(const CallContext& call) {
  return query_site(current_call_site(call.session, call.thread), call.session).phase == Phase::kOptimizer;
}

}  // namespace

std::optional<Finding> report_harm(DetectionSession& session, const Provenance& record, HarmKind kind,
                                   NonfiniteKinds kinds, const Site& site, const std::string& name) {
  const Cause* cause = reported(session, record, kind, kinds);
  if (cause == nullptr) return std::nullopt;
  Site live;
  live.live = site.live;
  return make_finding(*cause, Level::kError, harm_at(live, kind, [&] { return name; }, session), session);
}

void report_before(const CallContext& call, c10::ArrayRef<BadArgument> bad_arguments) {
  for (const BadArgument& argument : bad_arguments) {
    for (const Cause& cause : argument.record->causes()) {
      cause.root->used = true;
      if (call.plan.is_grad_scaler_check) cause.root->scaled = true;
      if (call.plan.is_comparison) cause.root->compared = true;
      if (!call.plan.is_comparison && !call.plan.is_data_movement) cause.root->computed = true;
    }
    if (call.plan.handling == OpPlan::Handling::kRead)
      judge(call.session, *argument.record, HarmKind::kRead, argument.kinds);
  }
}

void report_result(const CallContext& call, const Result& result, const NonfiniteRegistry::ProvenancePtr& record) {
  const Cause& first = record->first();
  if (call.session.options().when == When::kOrigin && first.steps.empty() && !first.root->is_intentional()) {
    judge(call.session, *record, HarmKind::kOrigin, result.kinds);
  }
  // Who else writes into a weight may still clean it: an initialiser, a loader. Its use will tell, or its end.
  if (is_parameter(result.tensor) && !first.root->reported && is_optimizer_step(call)) {
    judge(call.session, *record, HarmKind::kParameter, result.kinds,
          [&] { return parameter_name(call.session, result.tensor); });
  }
}

void judge_use(const CallContext& call, c10::ArrayRef<BadArgument> bad_arguments) {
  for (const BadArgument& argument : bad_arguments) {
    const bool was_made = argument.record->first().root->source == OriginRecord::Source::kOperation;
    if (!was_made || argument.overwritten || !is_parameter(argument.tensor)) continue;
    if (argument.record->first().root->reported) continue;
    const std::string name = parameter_name(call.session, argument.tensor);
    if (name.empty()) continue;  // a leaf of the program's own, no weight: what becomes of it will tell
    judge(call.session, *argument.record, HarmKind::kParameter, argument.kinds, [&] { return name; });
  }
}

// A root that is a view of a scalar has no operation in its own node; the scalar stands for it.
void judge_beginning_of_backward(DetectionSession& session) {
  if (program().reports_backward_roots()) return;
  const auto node = torch::autograd::get_current_node();
  const auto* inner = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (node == nullptr || inner == nullptr) return;
  const bool is_inner = inner->count(node.get()) != 0;
  for (const NonfiniteRegistry::Alive& made : nonfinite_registry().produced_by(*node)) {
    if (is_inner && made.tensor.numel() != 1) continue;
    judge(session, *made.record, HarmKind::kBackward, kinds_of(made.tensor));
  }
}

void report_backward_roots(DetectionSession& session, c10::ArrayRef<at::Tensor> roots,
                           c10::ArrayRef<at::Tensor> gradients) {
  const auto judge_root = [&](size_t i) {
    const at::Tensor root = roots[i].defined() ? scannable_values(roots[i]) : at::Tensor();
    if (!root.defined() || check_finite(root).finite) return;
    const at::Tensor gradient =
        i < gradients.size() && gradients[i].defined() ? scannable_values(gradients[i]) : at::Tensor();
    const bool is_weighed = gradient.defined() && gradient.sizes() == root.sizes();
    const NonfiniteKinds kinds = is_weighed ? kinds_where_nonzero(root, gradient) : kinds_of(root);
    if (!kinds.any()) return;
    judge(session, *record_of_argument(facts_of(backward_call, session), root, kinds), HarmKind::kBackward, kinds);
  };
  for (size_t i = 0; i < roots.size(); ++i) contain(session, "judging a root of backward", [&] { judge_root(i); });
  contain(session, "judging roots of backward on devices",
          [&] { judge_on_devices(session, HarmKind::kBackward, backward_call, roots); });
}

void report_tensors(DetectionSession& session, HarmKind kind, c10::ArrayRef<at::Tensor> tensors,
                    const std::function<std::string(size_t)>& name_of) {
  contain(session, "judging tensors on devices", [&] { judge_on_devices(session, kind, optimizer_step, tensors); });
  if (!nonfinite_registry().in_use()) return;
  const auto judge_tensor = [&](size_t i) {
    const at::Tensor tensor = tensors[i].defined() ? scannable_values(tensors[i]) : at::Tensor();
    if (!tensor.defined() || !nonfinite_registry().knows(tensor) || check_finite(tensor).finite) return;
    const NonfiniteKinds kinds = kinds_of(tensor);
    if (const auto record = nonfinite_registry().find(tensor))
      judge(session, *record, kind, kinds, [&] { return name_of(i); });
  };
  for (size_t i = 0; i < tensors.size(); ++i) contain(session, "judging a tensor", [&] { judge_tensor(i); });
}

void report_guard(DetectionSession& session, const at::Tensor& guarded, const std::string& name) {
  contain(session, "judging what is guarded on a device",
          [&] { judge_on_devices(session, HarmKind::kGuard, guard_call, guarded); });
  const at::Tensor tensor = scannable_values(guarded);
  if (!tensor.defined() || check_finite(tensor).finite) return;
  contain(session, "judging what is guarded", [&] {
    const NonfiniteKinds kinds = kinds_of(tensor);
    const CallContext guard = facts_of(guard_call, session);
    // Outside every scope nothing is remembered: nobody would forget it again.
    const auto record = open_scopes() > 0
                            ? record_of_argument(guard, tensor, kinds)
                            : std::make_shared<Provenance>(Cause{external_root(guard, tensor, kinds), kinds});
    judge(session, *record, HarmKind::kGuard, kinds, [&] { return name; });
  });
}

namespace {

// By age: what the program still holds.
void report_live_tensors(DetectionSession& session, std::map<uint64_t, Finding>& errors) {
  std::vector<at::Tensor> alive;
  for (NonfiniteRegistry::Alive& one : nonfinite_registry().alive()) alive.push_back(std::move(one.tensor));
  for (const Held& held : ask_held(alive, session)) {
    const at::Tensor tensor = scannable_values(held.tensor);
    const NonfiniteKinds kinds = tensor.defined() ? kinds_of(tensor) : NonfiniteKinds();
    const auto record = kinds.any() ? nonfinite_registry().find(tensor) : nullptr;
    if (record == nullptr || record->first().root->session.lock().get() != &session) continue;
    if (is_inherited(*record->first().root)) continue;
    // The program has looked at the gradient and left out the step.
    if (held.as_gradient && record->first().root->compared) continue;
    const HarmKind kind = is_parameter(held.tensor) ? HarmKind::kParameter : HarmKind::kAlive;
    const Cause* cause = reported(session, *record, kind, kinds);
    if (cause == nullptr) continue;
    const Harm harm = harm_here(kind, [&] { return parameter_name(session, tensor); }, session);
    errors.emplace(record->first().root->sequence, make_finding(*cause, Level::kError, harm, session));
  }
}

}  // namespace

void report_at_end(DetectionSession& session) {
  std::map<uint64_t, Finding> by_age;
  std::vector<Finding> findings;
  contain(session, "judging what is still held", [&] { report_live_tensors(session, by_age); });
  contain(session, "telling what was never used", [&] {
    for (auto& [age, finding] : by_age) findings.push_back(std::move(finding));
    for (const NonfiniteRegistry::ProvenancePtr& record : drain_unused(session)) {
      if (!wants(session, record->first().root->kinds) || is_inherited(*record->first().root)) continue;
      findings.push_back(make_finding(record->first(), Level::kWarning, unattributed_harm(), session));
    }
  });
  contain(session, "telling of findings", [&] { deliver_all(session, std::move(findings)); });
}

}  // namespace torchnan
