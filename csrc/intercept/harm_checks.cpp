#include "intercept/harm_checks.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <torchnan/scope.h>

#include "check/bounds/bound_cache.h"
#include "origin/current_call_site.h"
#include "detection/delivery.h"
#include "detection/error_containment.h"
#include "detection/thread_state.h"
#include "device/devices.h"
#include "device/resolve.h"
#include "check/operators/op_plan.h"
#include "origin/collectives.h"
#include "origin/dependent_values.h"
#include "origin/elementwise_attribution.h"
#include "origin/harm.h"
#include "origin/runtime_queries.h"
#include "origin/make_finding.h"
#include "origin/origin_records.h"
#include "origin/unused_results.h"
#include "check/scan/tensor_scan.h"

namespace torchnan {
namespace {

// Makes a plan for a consumer that is not an operator. Never destroyed: provenances point to it.
const OpPlan& consumer_plan(const char* name) {
  auto* plan = new OpPlan;
  plan->name = name;
  return *plan;
}
const OpPlan& backward_call = consumer_plan("autograd::backward");
const OpPlan& guard_call = consumer_plan("torchnan::guard");
const OpPlan& optimizer_step = consumer_plan("optimizer::step");
const OpPlan& origin_query = consumer_plan("torchnan::origin_of");
const OpPlan& detection_end = consumer_plan("torchnan::detect");

CallContext context_of(const OpPlan& consumer, DetectionSession& session) {
  return {consumer, {}, session, ThreadState::current().id()};
}

// For the end of the session, where no user code did the harm.
Harm unattributed_harm() {
  Harm harm;
  harm.kind = HarmKind::kUnused;
  return harm;
}

void report_backward_root(DetectionSession& session, const at::Tensor& given_root, const at::Tensor& given_gradient) {
  const at::Tensor root = given_root.defined() ? scannable_values(given_root) : at::Tensor();
  if (!root.defined()) return;
  if (check_finite(root).finite) {
    if (const auto provenance = provenance_of_dependent(root))
      report_harm(session, *provenance, HarmKind::kBackward, NonfiniteKinds::only_nan());
    return;
  }
  const at::Tensor gradient = given_gradient.defined() ? scannable_values(given_gradient) : at::Tensor();
  const bool is_weighed = gradient.defined() && gradient.sizes() == root.sizes();
  const NonfiniteKinds kinds = is_weighed ? kinds_where_nonzero(root, gradient) : kinds_of(root);
  if (!kinds.any()) return;
  const auto provenance = provenance_of_argument(context_of(backward_call, session), root, kinds);
  report_harm(session, *provenance, HarmKind::kBackward, kinds);
}

std::string name_of_held(const DetectionSession& session, const at::Tensor& held, HarmKind kind) {
  return kind == HarmKind::kParameter ? parameter_name_or_shape(session, held) : parameter_name(session, held);
}

// A non-finite tensor that user code references.
struct LiveTensor {
  at::Tensor values;
  NonfiniteKinds kinds;
  std::shared_ptr<const Provenance> provenance;
};

// Returns, by age, the findings of those tensors in `alive` that user code still references. find(tensor) returns the
// record of a tensor.
std::map<uint64_t, Finding> find_live_tensors(DetectionSession& session, const std::vector<at::Tensor>& alive,
                                              c10::function_ref<std::optional<LiveTensor>(const at::Tensor&)> find) {
  std::map<uint64_t, Finding> errors;
  for (const ReachableTensor& held : query_reachable_tensors(alive, session)) {
    const auto live = find(held.tensor);
    if (!live) continue;
    const OriginRecord& origin = *live->provenance->first().origin;
    if (origin.session.lock().get() != &session || is_inherited(origin)) continue;
    if (held.as_gradient && origin.compared) continue;  // user code has checked the gradient and skipped the step
    const bool is_as_received = !origin.collective.empty() && live->provenance->first().steps.empty();
    const bool is_buffer = is_as_received && !origin.owner;  // a pipeline receives into leaves
    const HarmKind kind = is_parameter(held.tensor) && !is_buffer ? HarmKind::kParameter : HarmKind::kAlive;
    auto finding = make_harm_finding(session, *live->provenance, kind, live->kinds, current_place(),
                                     [&] { return name_of_held(session, live->values, kind); });
    if (finding) errors.emplace(origin.sequence, std::move(*finding));
  }
  return errors;
}

std::map<uint64_t, Finding> find_live_on_host(DetectionSession& session) {
  const CallContext end = context_of(detection_end, session);
  const auto unread = remember_unread(end);
  // After another report, most often of the same cause, a received value that nothing reads is told only of weights.
  const bool tells_unread = session.log().findings().empty();
  std::vector<at::Tensor> alive;
  for (NonfiniteRegistry::Alive& one : nonfinite_registry().alive()) alive.push_back(std::move(one.tensor));
  for (NonfiniteRegistry::AliveDependent& one : nonfinite_registry().alive_dependent()) {
    if (!one.values->is_verdict) alive.push_back(std::move(one.bytes));  // keeping a mask is not harm
  }
  return find_live_tensors(session, alive, [&](const at::Tensor& tensor) -> std::optional<LiveTensor> {
    const at::Tensor values = scannable_values(tensor);
    const NonfiniteKinds kinds = values.defined() ? kinds_of(values) : NonfiniteKinds();
    auto provenance = kinds.any() ? nonfinite_registry().find(values) : nullptr;
    const auto dependent = provenance == nullptr ? nonfinite_registry().find_dependent(tensor) : nullptr;
    if (dependent != nullptr && !dependent->is_verdict && shows(tensor, *dependent))
      return LiveTensor{tensor, NonfiniteKinds::only_nan(), dependent->provenance};
    if (provenance == nullptr) return std::nullopt;
    const Cause& cause = provenance->first();
    const bool is_unread = std::find(unread.begin(), unread.end(), provenance) != unread.end();
    const bool is_as_received = !cause.first_computation && !is_exhausted(*provenance);
    const bool came_in = !cause.origin->collective.empty() && is_as_received;
    // It has the name of the parameter, as if an operation had read it.
    const auto as_argument = came_in && is_parameter(tensor) ? provenance_of_argument(end, values, kinds) : nullptr;
    if (as_argument != nullptr && as_argument->first().origin->owner) {
      provenance = as_argument;
    } else if (is_unread && came_in && !tells_unread) {
      return std::nullopt;
    }
    return LiveTensor{values, kinds, provenance};
  });
}

std::map<uint64_t, Finding> find_live_on_devices(DetectionSession& session) {
  std::unordered_map<const c10::StorageImpl*, LiveBadTensor> by_storage;
  std::vector<at::Tensor> alive;
  for (LiveBadTensor& one : live_bad_tensors()) {
    alive.push_back(one.tensor);
    by_storage.emplace(storage_of(one.tensor), std::move(one));
  }
  return find_live_tensors(session, alive, [&](const at::Tensor& tensor) -> std::optional<LiveTensor> {
    const at::Tensor values = *scannable(tensor);
    const auto found = values.defined() ? by_storage.find(storage_of(values)) : by_storage.end();
    if (found == by_storage.end()) return std::nullopt;
    const auto& [scanned, bad] = found->second;
    const bool may_be_finite_part = !TensorSnapshot(values).has_place_of(TensorSnapshot(scanned));
    if (may_be_finite_part && !may_be_bad(values)) return std::nullopt;
    return LiveTensor{values, bad.kinds, bad.provenance};
  });
}

std::shared_ptr<const Provenance> provenance_on_device(const at::Tensor& tensor) {
  const at::Tensor values = *scannable(tensor);
  if (!values.defined()) return nullptr;
  resolve(Delivery::kDeferred);
  for (const LiveBadTensor& one : live_bad_tensors()) {
    if (one.tensor.storage().is_alias_of(values.storage()) && may_be_bad(values)) return one.bad.provenance;
  }
  return nullptr;
}

std::shared_ptr<const Provenance> provenance_on_host(DetectionSession& session, const at::Tensor& tensor) {
  if (auto computed = provenance_of_dependent(tensor)) return computed;
  const at::Tensor values = scannable_values(tensor);
  const NonfiniteKinds kinds = values.defined() ? kinds_of(values) : NonfiniteKinds();
  return kinds.any() ? provenance_of_argument(context_of(origin_query, session), values, kinds) : nullptr;
}

std::vector<Finding> in_order(std::map<uint64_t, Finding> by_age) {
  std::vector<Finding> findings;
  for (auto& [age, finding] : by_age) findings.push_back(std::move(finding));
  return findings;
}

}  // namespace

void report_backward_roots(DetectionSession& session, c10::ArrayRef<at::Tensor> roots,
                           c10::ArrayRef<at::Tensor> gradients) {
  for (size_t i = 0; i < roots.size(); ++i) {
    run_contained(session, "checking a root of backward",
                  [&] { report_backward_root(session, roots[i], i < gradients.size() ? gradients[i] : at::Tensor()); });
  }
  run_contained(session, "checking roots of backward on devices",
                [&] { report_on_devices(session, HarmKind::kBackward, backward_call, roots); });
}

void report_tensors(DetectionSession& session, HarmKind kind, c10::ArrayRef<at::Tensor> tensors,
                    const std::function<std::string(size_t)>& name_of) {
  run_contained(session, "checking tensors on devices",
                [&] { report_on_devices(session, kind, optimizer_step, tensors); });
  const bool is_read = kind != HarmKind::kRead && has_received();  // the operations of a step read what was received
  if (!nonfinite_registry().in_use() && !is_read) return;
  const auto report_tensor = [&](size_t i) {
    if (const auto provenance = kind == HarmKind::kRead ? provenance_of_dependent(tensors[i]) : nullptr)
      report_harm(session, *provenance, kind, NonfiniteKinds::only_nan(), [&] { return name_of(i); });
    const at::Tensor tensor = tensors[i].defined() ? scannable_values(tensors[i]) : at::Tensor();
    if (!tensor.defined()) return;
    const bool is_unread = is_read && bound_cache().pending_collective(tensor) != nullptr;
    if (!is_unread && !nonfinite_registry().contains(tensor)) return;
    if (check_finite(tensor).finite) return;
    const NonfiniteKinds kinds = kinds_of(tensor);
    const auto provenance = is_unread ? provenance_of_argument(context_of(optimizer_step, session), tensor, kinds)
                                      : nonfinite_registry().find(tensor);
    if (provenance == nullptr || is_exhausted(*provenance)) return;
    report_harm(session, *provenance, kind, kinds, [&] { return name_of(i); });
  };
  for (size_t i = 0; i < tensors.size(); ++i) run_contained(session, "checking a tensor", [&] { report_tensor(i); });
}

void report_guard(DetectionSession& session, const at::Tensor& guarded, const std::string& name,
                  const std::source_location* where) {
  run_contained(session, "checking guarded tensors on a device",
                [&] { report_on_devices(session, HarmKind::kGuard, guard_call, guarded); });
  const at::Tensor tensor = scannable_values(guarded);
  if (!tensor.defined() || check_finite(tensor).finite) return;
  run_contained(session, "checking guarded tensors", [&] {
    std::optional<Scope> here;
    if (where != nullptr) here.emplace(name, *where);
    const NonfiniteKinds kinds = kinds_of(tensor);
    const CallContext guard = context_of(guard_call, session);
    // Outside of every session nothing is recorded, because nothing would remove the record.
    const auto provenance = open_scopes() > 0
                                ? provenance_of_argument(guard, tensor, kinds)
                                : std::make_shared<Provenance>(Cause{external_origin(guard, tensor, kinds), kinds});
    report_harm(session, *provenance, HarmKind::kGuard, kinds, [&] { return name; });
  });
}

std::optional<Finding> find_origin(DetectionSession& session, const at::Tensor& tensor) {
  auto provenance = devices().in_use() ? provenance_on_device(tensor) : nullptr;
  if (provenance == nullptr) provenance = provenance_on_host(session, tensor);
  if (provenance == nullptr) return std::nullopt;
  return make_finding(provenance->first(), Level::kNote, Harm{}, session);
}

void resolve_pending(const DetectionSession& session) {
  run_contained(session, "resolving pending checks on devices", [] { resolve(Delivery::kDeferred); });
}

void report_at_end_on_devices(DetectionSession& session) {
  if (!devices().in_use()) return;
  std::vector<Finding> findings;
  run_contained(session, "resolving pending checks on devices", [&] {
    resolve(Delivery::kNow);
    raise_deferred(session);
  });
  run_contained(session, "checking live tensors on devices",
                [&] { findings = in_order(find_live_on_devices(session)); });
  run_contained(session, "delivering findings", [&] {
    deliver_all(session, std::move(findings));
    raise_deferred(session);
  });
}

void report_at_end_on_host(DetectionSession& session) {
  std::vector<Finding> findings;
  run_contained(session, "checking live tensors", [&] { findings = in_order(find_live_on_host(session)); });
  run_contained(session, "reporting unused results", [&] {
    for (const NonfiniteRegistry::ProvenancePtr& provenance : drain_unused(session)) {
      if (!session.checks(provenance->first().origin->kinds) || is_inherited(*provenance->first().origin)) continue;
      findings.push_back(make_finding(provenance->first(), Level::kWarning, unattributed_harm(), session));
    }
  });
  run_contained(session, "recording the values sent to other ranks", [&] {
    for (const NonfiniteRegistry::ProvenancePtr& provenance : drain_sent(session)) {
      if (!session.checks(provenance->first().origin->kinds) || is_inherited(*provenance->first().origin)) continue;
      findings.push_back(make_finding(provenance->first(), Level::kNote, Harm{}, session));
    }
  });
  run_contained(session, "delivering findings", [&] { deliver_all(session, std::move(findings)); });
}

}  // namespace torchnan
