#include "intercept/region_border.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "check/bounds/bound_cache.h"
#include "origin/current_call_site.h"
#include "device/devices.h"
#include "device/resolve.h"
#include "origin/harm.h"
#include "origin/runtime_queries.h"
#include "origin/origin_records.h"
#include "origin/unused_results.h"
#include "check/scan/storage_of.h"
#include "check/scan/tensor_scan.h"

namespace torchnan {
namespace {

// Represents the region as an operation. Never destroyed: threads may outlive static destructors.
const OpPlan& region_plan(bool is_comparison) {
  auto* plan = new OpPlan;
  plan->name = "inductor::compiled_region";
  plan->argument_names = {"arguments"};
  plan->is_comparison = is_comparison;
  return *plan;
}
const OpPlan& region_call = region_plan(false);
const OpPlan& comparison_in_region = region_plan(true);

CallContext context_of_region(DetectionSession& session) {
  return {region_call, {}, session, ThreadState::current().id()};
}

bool have_same_place(const OriginRecord& a, const OriginRecord& b) {
  if (a.site.live == b.site.live) return true;
  const auto is_same = [](const Frame& one, const Frame& other) {
    return one.line == other.line && one.file == other.file && one.function == other.function;
  };
  // Frames of PyTorch, which are not shown, may differ.
  return !a.facts.stack.empty() && std::ranges::equal(a.facts.stack, b.facts.stack, is_same);
}

// Whether both are the same operation of a forward pass that ran again: each replay has the same call sites.
bool is_same_operation(const OriginRecord& a, const OriginRecord& b) {
  const auto is_in_forward_pass = [](const OriginRecord& origin) {
    return origin.source == OriginRecord::Source::kOperation && origin.site.node.empty() && origin.site.live != 0;
  };
  return is_in_forward_pass(a) && is_in_forward_pass(b) && have_same_place(a, b) && a.facts.op == b.facts.op &&
         a.facts.output == b.facts.output;
}

// The path from an argument to a value computed from it.
Cause continued(const Cause& argument, const Cause& argument_then, const Cause& value_then) {
  Cause value = argument;
  value.kinds = value_then.kinds;
  for (size_t i = argument_then.steps.size(); i < value_then.steps.size(); ++i) {
    const Step& step = value_then.steps[i];
    value = value.extended(step, step.plan->is_data_movement, value_then.kinds);
  }
  return value;
}

// Whether it is a tensor on a device whose values the region has received, and whose kinds nobody has asked for.
bool is_view_of_argument(const RegionResult& result, const DeviceCheck::Arguments& arguments) {
  return result.is_unwritten && !result.kinds.any() && result.tensor.has_storage() &&
         std::any_of(arguments.read.begin(), arguments.read.end(),
                     [storage = storage_of(result.tensor)](const EventInput& read) { return read.storage == storage; });
}

}  // namespace

NonfiniteKinds check_region_result(const at::Tensor& tensor, bool is_unwritten, ThreadState& thread) {
  Counters& counters = thread.counters();
  if (is_unwritten && bound_cache().find(tensor).state == BoundCache::State::kFinite && is_plain(tensor)) {
    counters.count_proved(static_cast<int64_t>(tensor.nbytes()));
    return {};
  }
  const ScanResult verdict = check_finite(tensor);
  if (verdict.skip != Skip::kNone) {
    counters.count_skipped(verdict.skip);
    return {};
  }
  counters.count_scanned(verdict.bytes);
  const at::Tensor values = scannable_values(tensor);
  if (!verdict.finite) {
    counters.nonfinite.add(1);
    bound_cache().forget(values);
    return kinds_of(values);
  }
  bound_cache().record_written(values, {verdict.max_abs}, &region_call.name);
  if (nonfinite_registry().in_use()) nonfinite_registry().settle(values);
  return {};
}

DeviceCheck::Arguments record_region_arguments(DetectionSession& session, c10::ArrayRef<at::Tensor> tensors) {
  devices().launch_all();  // the region may write there
  DeviceCheck check(region_call, ThreadState::current(), session);
  const c10::IValue list(tensors.vec());
  check.record_arguments(operand(list));
  return check.arguments();
}

void record_region_comparison(DetectionSession& session, c10::ArrayRef<at::Tensor> tensors) {
  DeviceCheck check(comparison_in_region, ThreadState::current(), session);
  const c10::IValue list(tensors.vec());
  check.record_arguments(operand(list));
  check.record();
}

NonfiniteRegistry::ProvenancePtr provenance_on_devices(const DeviceCheck::Arguments& arguments) {
  resolve(Delivery::kDeferred);
  for (const EventInput& input : arguments.read) {
    if (const auto bad = bad_event(input.event)) return bad->provenance;
  }
  return nullptr;
}

void record_results_on_devices(DetectionSession& session, const DeviceCheck::Arguments& arguments,
                               std::vector<RegionResult>& results, std::shared_ptr<const ReplayedRegion> region) {
  DeviceCheck check(region_call, ThreadState::current(), session);
  check.begin_results(arguments, std::move(region));
  std::erase_if(results, [&](const RegionResult& one) { return is_view_of_argument(one, arguments); });
  bool is_recorded = false;
  for (RegionResult& result : results) {
    if (result.kinds.any()) continue;
    result.is_on_device = check.add_result(result.tensor, static_cast<int64_t>(result.index), {});
    is_recorded |= result.is_on_device;
  }
  if (is_recorded) check.record();
}

void find_kinds_on_devices(std::vector<RegionResult>& results) {
  std::vector<at::Tensor> tensors;
  for (const RegionResult& result : results) tensors.push_back(result.tensor);
  const std::vector<NonfiniteKinds> kinds = kinds_on_devices(tensors);
  for (size_t i = 0; i < results.size(); ++i) results[i].kinds = kinds[i];
  resolve(Delivery::kDeferred);  // of what ran before the region, so that a replay resolves only its own operations
}

NonfiniteKinds kinds_anywhere(const at::Tensor& tensor) {
  return tensor.is_cpu() ? kinds_of(tensor) : kinds_on_devices(tensor).front();
}

void record_border_origin(DetectionSession& session, const at::Tensor& result, int64_t output,
                          const ReplayedRegion& region) {
  if (!result.is_cpu()) {
    std::vector<RegionResult> results;
    results.push_back({static_cast<size_t>(output), result, /*is_unwritten=*/false});
    record_results_on_devices(session, {}, results, std::make_shared<const ReplayedRegion>(region));
    return heed_alarm(session, /*is_read=*/false);
  }
  const NonfiniteKinds kinds = kinds_of(result);
  if (!kinds.any()) return;
  const at::Tensor values = scannable_values(result);
  auto origin = border_origin(context_of_region(session), values, output, kinds, region);
  const auto provenance = std::make_shared<Provenance>(Cause{std::move(origin), kinds});
  nonfinite_registry().remember(values, provenance);
  if (session.reports_origins()) report_harm(session, *provenance, HarmKind::kOrigin, kinds);
}

void record_fused_origin(DetectionSession& session, const at::Tensor& result, const std::string& op) {
  const NonfiniteKinds kinds = kinds_of(result);
  if (!kinds.any()) return;
  OpPlan plan;
  plan.name = op;
  const CallContext call{plan, {}, session, ThreadState::current().id()};
  const at::Tensor values = scannable_values(result);
  const auto provenance = std::make_shared<Provenance>(Cause{operation_origin(call, values, 0, kinds), kinds});
  nonfinite_registry().remember(values, provenance);
}

void set_region_provenance(DetectionSession& session, const at::Tensor& result,
                           const NonfiniteRegistry::ProvenancePtr& provenance) {
  const at::Tensor values = scannable_values(result);
  if (!result.is_cpu()) {
    record_bad_write(result, provenance);
  } else if (values.defined()) {
    nonfinite_registry().remember(values, provenance);
  } else {
    return;
  }
  record_unused_if_new(session, provenance);
}

NonfiniteRegistry::ProvenancePtr with_origins_of_forward_pass(
    const NonfiniteRegistry::ProvenancePtr& gradient, const std::vector<NonfiniteRegistry::ProvenancePtr>& forward) {
  std::vector<Cause> causes = gradient->causes();
  for (Cause& cause : causes) {
    for (const auto& result : forward) {
      const auto& known = result->causes();
      const auto same = std::find_if(known.begin(), known.end(), [&](const Cause& earlier) {
        return is_same_operation(*cause.origin, *earlier.origin);
      });
      if (same == known.end()) continue;
      cause.origin = same->origin;
      break;
    }
  }
  return std::make_shared<Provenance>(std::move(causes));
}

std::vector<NonfiniteRegistry::ProvenancePtr> repeated_in_this_call(
    DetectionSession& session, const std::vector<NonfiniteRegistry::ProvenancePtr>& earlier,
    const std::vector<RegionArgument>& arguments, bool is_checked) {
  std::map<const OriginRecord*, std::shared_ptr<OriginRecord>> own;
  const auto causes_now = [&](const Cause& then) {
    std::vector<Cause> causes;
    for (const RegionArgument& argument : arguments) {
      for (const Cause& given : argument.then->causes()) {
        if (given.origin != then.origin) continue;
        for (const Cause& now : argument.now->causes()) causes.push_back(continued(now, given, then));
        return causes;
      }
    }
    auto& origin = own[then.origin.get()];
    if (origin == nullptr) origin = repeated_origin(*then.origin, session, is_checked);
    causes.push_back(then);
    causes.back().origin = origin;
    return causes;
  };
  std::vector<NonfiniteRegistry::ProvenancePtr> repeated;
  for (const auto& known : earlier) {
    std::vector<Cause> causes;
    for (const Cause& then : known->causes()) {
      for (Cause& cause : causes_now(then)) causes.push_back(std::move(cause));
    }
    repeated.push_back(std::make_shared<Provenance>(std::move(causes)));
  }
  return repeated;
}

void record_region_use(const at::Tensor& argument, bool is_compared) {
  const at::Tensor values = scannable_values(argument);
  if (!values.defined()) return;
  const auto provenance = nonfinite_registry().find(values);
  if (provenance == nullptr || !kinds_of(values).any()) return;
  record_use(*provenance, region_call);
  if (!is_compared) return;
  const auto node = current_node_site();
  record_use(*provenance, comparison_in_region, node ? node->execution_id : 0);
}

OpPlan allocation_plan(std::string op) {
  OpPlan plan;
  plan.name = std::move(op);
  plan.handling = OpPlan::Handling::kAllocate;
  plan.returns_allocation = true;
  return plan;
}

void record_region_allocation(DetectionSession& session, const at::Tensor& result, SiteId site, const OpPlan& op) {
  if (result.is_cpu()) return bound_cache().record_uninitialized(result, site, &op.name);
  DeviceCheck check(op, ThreadState::current(), session, site);
  check.begin_results({}, nullptr);
  check.add_result(result, 0, {});
  check.record();
}

void record_copy(const at::Tensor& tensor, const at::Tensor& copy) {
  if (!tensor.is_cpu()) return Devices::Lock(devices()).journal().copy_last_event(tensor, copy);
  const at::Tensor values = scannable_values(tensor);
  const at::Tensor copied = scannable_values(copy);
  if (!values.defined() || !copied.defined()) return;
  const BoundCache::Entry known = bound_cache().find(values);
  if (known.state == BoundCache::State::kUninitialized) {
    bound_cache().record_uninitialized(copied, known.site, known.op);
  }
  if (!nonfinite_registry().in_use()) return;
  if (auto provenance = nonfinite_registry().find(values)) nonfinite_registry().remember(copied, std::move(provenance));
}

NonfiniteRegistry::ProvenancePtr record_region_input(DetectionSession& session, const at::Tensor& argument) {
  const NonfiniteKinds kinds = kinds_anywhere(argument);
  if (!kinds.any()) return nullptr;
  if (!argument.is_cpu()) return provenance_of_last_write(argument);
  return provenance_of_argument(context_of_region(session), scannable_values(argument), kinds);
}

}  // namespace torchnan
