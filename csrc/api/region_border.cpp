#include "api/region_border.h"

#include <memory>
#include <utility>

#include "bounds/bound_cache.h"
#include "operators/op_plan.h"
#include "origin/harm.h"
#include "origin/origin_records.h"
#include "scan/tensor_scan.h"

namespace torchnan {
namespace {

// Stands for the region, as an operation.
const OpPlan& make_region_call() {
  auto* plan = new OpPlan;
  plan->name = "inductor::compiled_region";
  return *plan;
}

const OpPlan& region_call = make_region_call();  // never destroyed: threads may outlive static destructors

CallContext context_of_region(DetectionSession& session) {
  return {region_call, {}, session, ThreadState::current().id()};
}

}  // namespace

NonfiniteKinds check_region_result(const at::Tensor& tensor, bool is_unwritten, ThreadState& thread) {
  Counters& counters = thread.counters();
  if (is_unwritten && bound_cache().find(tensor).state == BoundCache::State::kFinite && is_plain(tensor)) {
    counters.checked.add(1);
    counters.proved.add(1);
    counters.bytes_proved.add(static_cast<int64_t>(tensor.nbytes()));
    return {};
  }
  const ScanResult verdict = check_finite(tensor);
  if (verdict.skip != Skip::kNone) {
    counters.skipped[static_cast<size_t>(verdict.skip)].add(1);
    return {};
  }
  counters.checked.add(1);
  counters.bytes.add(verdict.bytes);
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

void record_border_origin(DetectionSession& session, const at::Tensor& result, int64_t output,
                          const ReplayedRegion& region) {
  const NonfiniteKinds kinds = kinds_of(result);
  if (!kinds.any()) return;
  const at::Tensor values = scannable_values(result);
  auto origin = border_origin(context_of_region(session), values, output, kinds, region);
  const auto provenance = std::make_shared<Provenance>(Cause{std::move(origin), kinds});
  nonfinite_registry().remember(values, provenance);
  if (session.options().when == When::kOrigin) report_harm(session, *provenance, HarmKind::kOrigin, kinds);
}

void record_region_use(const at::Tensor& argument) {
  const at::Tensor values = scannable_values(argument);
  if (!values.defined()) return;
  const auto record = nonfinite_registry().find(values);
  if (record != nullptr && kinds_of(values).any()) record_use(*record, region_call);
}

NonfiniteRegistry::ProvenancePtr record_region_input(DetectionSession& session, const at::Tensor& argument) {
  const NonfiniteKinds kinds = kinds_of(argument);
  if (!kinds.any()) return nullptr;
  return record_of_argument(context_of_region(session), scannable_values(argument), kinds);
}

}  // namespace torchnan
