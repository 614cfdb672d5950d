#include "origin/harm.h"

#include <algorithm>

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/function.h>

#include "check/scan/tensor_scan.h"
#include "check/operators/op_plan.h"
#include "origin/runtime_queries.h"
#include "origin/make_finding.h"
#include "origin/origin_records.h"
#include "origin/replayed_region.h"
#include "origin/reported_causes.h"
#include "origin/unused_results.h"
#include "report/own_frame.h"
#include "origin/current_call_site.h"
#include "detection/user_notifier.h"
#include "detection/delivery.h"
#include "detection/error_containment.h"
#include "base/format.h"

namespace torchnan {
namespace {

// Whether all results computed with such values were finite, or nothing was computed with them. What an operation made
// is one only if something was computed with it, or if user code knows it as one.
bool is_mask(const Cause& cause) {
  const OriginRecord& origin = *cause.origin;
  if (origin.source == OriginRecord::Source::kOperation) {
    const bool is_gradient = !origin.site.node.empty();
    const bool served = (origin.computed || origin.expected) && !origin.propagated && !cause.first_computation;
    return served && !is_gradient && origin.kinds == NonfiniteKinds::only_neginf();
  }
  if (origin.unwritten || origin.foreign || origin.parameter) return false;
  if (!origin.collective.empty() && cause.kinds.nan()) return false;  // another rank has made it
  return !cause.kinds.nan() || !cause.first_computation;
}

// Keeping or inspecting a mask is not harm.
bool is_harmless(const Cause& cause, HarmKind kind) {
  if (kind == HarmKind::kAlive) return is_mask(cause);
  if (cause.origin->source == OriginRecord::Source::kOperation) return false;
  return (kind == HarmKind::kRead || kind == HarmKind::kOptimizerState) && is_mask(cause);
}

// A loss scaler skips the step. If the optimizer takes the step anyway, the values that it reads or writes do harm.
bool is_exempt(const DetectionSession& session, const OriginRecord& origin, HarmKind kind) {
  if (origin.exempt) return true;
  if (kind == HarmKind::kGradient || kind == HarmKind::kParameter || kind == HarmKind::kOptimizerState) return false;
  return origin.seen_by_scaler || (kind == HarmKind::kAlive && is_of_skipped_step(session, origin));
}

// Whether the step proceeds after its gradient was reported; unknown if a callback or the user decides.
std::optional<bool> step_proceeds(const Options& options) {
  if (options.callback) return std::nullopt;
  switch (options.action) {
    case Action::kRaise:
      return false;
    case Action::kWarn:
    case Action::kLog:
      return true;
    case Action::kBreakpoint:
      return std::nullopt;
  }
  return std::nullopt;
}

Harm harm_at(const Site& site, HarmKind kind, const HarmedName& name, const DetectionSession& session) {
  Harm harm;
  harm.kind = kind;
  harm.step = site.step == 0 ? session.step() : site.step;
  if (kind == HarmKind::kGradient) harm.applied = step_proceeds(session.options());
  run_contained(session, "naming a harmed tensor", [&] { harm.name = name ? name() : ""; });
  const ResolvedSite resolved = query_site(site, session);
  if (!resolved.stack.empty()) {
    const Frame* own = own_frame(resolved.stack);
    const Frame& shown = own != nullptr ? *own : resolved.stack.front();
    harm.file = shown.file;
    harm.line = shown.line;
  }
  return harm;
}

// Whether another value that the same collective brought in the step was reported. A metric is no reason for weights:
// a program without an optimizer has one step.
bool is_reported_of_collective(const DetectionSession& session, const std::shared_ptr<OriginRecord>& origin) {
  if (origin->collective.empty()) return false;
  if (!origin->owner && is_beside_bad_weights(session, *origin)) return true;
  const auto first = one_origin_of(origin->collective + (origin->owner ? " of weights" : ""), session, origin);
  return first != origin && first->reported;
}

// Whether weights of this rank have the value now, or will have it after the step.
bool is_in_weights(const DetectionSession& session, HarmKind kind) {
  return kind == HarmKind::kParameter || (kind == HarmKind::kGradient && step_proceeds(session.options()) != false);
}

// Returns the first cause that does harm; null if there is none.
const Cause* harmful_cause(const Provenance& provenance, HarmKind kind) {
  const auto& causes = provenance.causes();
  const auto found =
      std::find_if(causes.begin(), causes.end(), [&](const Cause& one) { return !is_harmless(one, kind); });
  return found == causes.end() ? nullptr : &*found;
}

// Whether the cause is the consequence of one that was reported.
bool is_consequence(const DetectionSession& session, const std::shared_ptr<OriginRecord>& origin, HarmKind kind) {
  if (kind != HarmKind::kOrigin && is_reported_in_forward_pass(session, *origin)) return true;
  return is_reported_of_collective(session, origin);
}

// Returns what another rank has sent back: values that this one has made, such as the gradient of a stage or tokens
// from an expert. Null if this rank has not made them.
NonfiniteRegistry::ProvenancePtr sent_back(const DetectionSession& session, const OriginRecord& origin, HarmKind kind) {
  const auto sent = origin.collective.empty() ? nullptr : sent_before(session, origin);
  const bool does_harm = sent != nullptr && (sent->first().origin->reported || !is_harmless(sent->first(), kind));
  return does_harm ? sent : nullptr;
}

// Returns whether a cause was still to be reported, and marks it as reported.
bool claim(const Cause& cause) { return !cause.origin->reported.exchange(true); }

// Returns the cause to report and claims it, so that there is one alarm per cause; null if there is none. A cause that
// is the consequence of another one is claimed, too. Copies no cause: an allocation that failed after the claim would
// lose the alarm.
std::shared_ptr<const Cause> claim_cause(const DetectionSession& session, const Provenance& provenance, HarmKind kind,
                                         NonfiniteKinds kinds) {
  const Cause* const cause = session.checks(kinds) ? harmful_cause(provenance, kind) : nullptr;
  if (cause == nullptr || is_exempt(session, *cause->origin, kind)) return nullptr;
  if (!claim(*cause) || is_consequence(session, cause->origin, kind)) return nullptr;
  const auto sent = sent_back(session, *cause->origin, kind);
  if (sent != nullptr && !claim(sent->first())) return nullptr;
  if (sent != nullptr) record_reported(session, *sent->first().origin);
  if (!cause->origin->collective.empty() && is_in_weights(session, kind)) record_bad_weights(session);
  for (const Cause& one : provenance.causes()) record_reported(session, *one.origin);  // one report for all of them
  // the caller keeps `provenance`
  return sent != nullptr ? std::shared_ptr<const Cause>(sent, &sent->first())
                         : std::shared_ptr<const Cause>(std::shared_ptr<const Cause>(), cause);
}

}  // namespace

void report_harm(DetectionSession& session, const Provenance& provenance, HarmKind kind, NonfiniteKinds kinds,
                 const HarmedName& name) {
  if (kind == HarmKind::kRead && kinds.nan()) record_read(session, provenance.first().origin);
  const auto cause = claim_cause(session, provenance, kind, kinds);
  if (cause == nullptr) return;
  try {
    deliver(session, make_finding(*cause, Level::kError, harm_at(current_place(), kind, name, session), session));
  } catch (const UserFacingException&) {
    throw;
  } catch (...) {  // nothing was reported, so the next harm will be
    cause->origin->reported = false;
    throw;
  }
}

std::optional<Finding> make_harm_finding(DetectionSession& session, const Provenance& provenance, HarmKind kind,
                                         NonfiniteKinds kinds, const Site& site, const HarmedName& name) {
  const auto cause = claim_cause(session, provenance, kind, kinds);
  if (cause == nullptr) return std::nullopt;
  Site live;
  live.live = site.live;
  live.inner = site.inner;
  live.step = site.step;
  Harm harm = harm_at(live, kind, name, session);
  if (harm.applied == false) harm.applied.reset();  // it is delivered later: the step may be over by then
  return make_finding(*cause, Level::kError, std::move(harm), session);
}

std::string parameter_name(const DetectionSession& session, const at::Tensor& tensor) {
  const auto owner = owner_of(tensor, true, session);
  return owner ? owner->name : "";
}

std::string parameter_name_or_shape(const DetectionSession& session, const at::Tensor& tensor) {
  std::string name = parameter_name(session, tensor);
  if (!name.empty()) return name;
  return format_text("{}of shape [{}] that no module owns", kNamelessParameter, join_text(tensor.sizes(), ","));
}

// Values that a node compares in its formula were computed by the node, or existed before the pass. Compiled autograd
// is one region, without nodes.
bool is_gradient(const Cause& cause, uint64_t node_execution_id) {
  if (cause.node_execution_id != 0) return cause.node_execution_id != node_execution_id;
  const auto& region = cause.origin->region;
  return region != nullptr && region->is_backward && region != replayed_region();
}

// claim_cause() finds nothing whose first cause is claimed and can never count as a mask.
bool is_exhausted(const Provenance& provenance) {
  const Cause& cause = provenance.first();
  return (cause.origin->reported || cause.origin->exempt) && !is_mask(cause);
}

void record_use(const Provenance& provenance, const OpPlan& plan, uint64_t node_execution_id) {
  for (const Cause& cause : provenance.causes()) {
    cause.origin->used = true;
    if (plan.is_grad_scaler_check) cause.origin->seen_by_scaler = true;
    if (plan.is_comparison && !plan.is_ordering) cause.origin->looked_for = true;
    if (plan.is_comparison && is_gradient(cause, node_execution_id)) cause.origin->compared = true;
    const bool computes = !plan.is_comparison && !plan.is_data_movement && !plan.is_async_collective;
    if (computes) cause.origin->computed = true;
  }
}

// nn.Transformer compares a mask with the causal one that it makes, and then does not use it.
bool is_known_mask(const BadArgument& argument) {
  return argument.kinds == NonfiniteKinds::only_neginf() && argument.provenance->first().origin->is_intentional();
}

void report_arguments(const CallContext& call, c10::ArrayRef<BadArgument> bad_arguments) {
  if (bad_arguments.empty()) return;
  const torch::autograd::Node* const node = running_node();
  const uint64_t node_execution_id = node == nullptr ? 0 : execution_id(*node);
  const bool is_equality = call.plan.is_comparison && !call.plan.is_ordering;
  if (is_equality && std::any_of(bad_arguments.begin(), bad_arguments.end(), is_known_mask)) {
    for (const BadArgument& argument : bad_arguments) argument.provenance->first().origin->expected = true;
  }
  for (const BadArgument& argument : bad_arguments) {
    record_use(*argument.provenance, call.plan, node_execution_id);
    if (call.plan.handling == OpPlan::Handling::kRead)
      report_harm(call.session, *argument.provenance, HarmKind::kRead, argument.kinds);
  }
}

bool is_new_accident(const Provenance& provenance) {
  return provenance.first().steps.empty() && !provenance.first().origin->is_intentional();
}

bool is_parameter_harmed(const Provenance& provenance, bool is_parameter, c10::function_ref<Site()> site,
                         const DetectionSession& session) {
  if (!is_parameter || provenance.first().origin->reported) return false;
  return query_site(site(), session).phase == Phase::kOptimizer;
}

void report_result(const CallContext& call, const Result& result, const NonfiniteRegistry::ProvenancePtr& provenance) {
  if (call.session.reports_origins() && is_new_accident(*provenance)) {
    report_harm(call.session, *provenance, HarmKind::kOrigin, result.kinds);
  }
  if (replayed_region() != nullptr) return;  // it writes copies; the harm is done by the region's own writes
  const auto site = [&] { return current_call_site(call.session, call.thread); };
  if (is_parameter_harmed(*provenance, is_parameter(result.tensor), site, call.session)) {
    report_harm(call.session, *provenance, HarmKind::kParameter, result.kinds,
                [&] { return parameter_name_or_shape(call.session, result.tensor); });
  }
}

void report_weight_use(const CallContext& call, c10::ArrayRef<BadArgument> bad_arguments) {
  for (const BadArgument& argument : bad_arguments) {
    const bool was_made = argument.provenance->first().origin->source == OriginRecord::Source::kOperation;
    if (!was_made || argument.overwritten || !is_parameter(argument.tensor)) continue;
    if (argument.provenance->first().origin->reported) continue;
    const std::string name = parameter_name(call.session, argument.tensor);
    if (name.empty()) continue;  // a leaf of user code, not a weight: reported if its results do harm
    report_harm(call.session, *argument.provenance, HarmKind::kParameter, argument.kinds, [&] { return name; });
  }
}

// A root that is a view of a scalar has no operation in its own node; the scalar stands for it.
void report_backward_start(DetectionSession& session) {
  if (runtime().reports_backward_roots()) return;
  torch::autograd::Node* const node = running_node();
  const auto* inner = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (node == nullptr || inner == nullptr) return;
  const bool is_inner = inner->count(node) != 0;
  for (const NonfiniteRegistry::Alive& made : nonfinite_registry().produced_by(*node)) {
    if (is_inner && made.tensor.numel() != 1) continue;
    report_harm(session, *made.provenance, HarmKind::kBackward, kinds_of(made.tensor));
  }
}

}  // namespace torchnan
