#include "origin/attribution.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "check/scan/tensor_scan.h"
#include "origin/harm.h"
#include "origin/host_evidence.h"
#include "origin/origin_records.h"
#include "origin/current_call_site.h"
#include "origin/replayed_region.h"
#include "origin/unused_results.h"
#include "base/work_counters.h"

namespace torchnan {

BadArgument bad_argument(const CallContext& call, const at::Tensor& tensor, std::string_view name, int64_t element,
                         NonfiniteKinds kinds, bool overwritten) {
  BadArgument bad{tensor, std::string(name), element, kinds, provenance_of_argument(call, tensor, kinds)};
  bad.overwritten = overwritten;
  if (is_exhausted(*bad.provenance)) return bad;
  if (!call.plan.pointwise && !call.plan.elementwise_in_self) return bad;
  if (bad.provenance->is_intentional()) bad.count = counts_of(tensor).all();
  if (overwritten) bad.before = kinds_by_element(tensor);
  return bad;
}

NonfiniteRegistry::ProvenancePtr exhausted_provenance(const CallContext& call, c10::ArrayRef<BadArgument> bad_arguments,
                                                      int64_t output) {
  if (bad_arguments.empty()) return nullptr;
  const int64_t size = call.plan.is_foreach_elementwise ? list_size(call) : 1;
  NonfiniteRegistry::ProvenancePtr first;
  for (const BadArgument& argument : bad_arguments) {
    if (!is_made_of(call.plan, argument.element, output, size)) continue;
    if (!is_exhausted(*argument.provenance)) return nullptr;
    const auto& one = argument.provenance;
    if (first == nullptr || one->first().origin->takes_precedence_over(*first->first().origin)) first = one;
  }
  return first;
}

void attribute(const CallContext& call, c10::SmallVectorImpl<BadArgument>& bad_arguments,
               c10::ArrayRef<Result> results) {
  std::optional<HostEvidence> evidence;  // made for the first result that needs it
  const bool needs_evidence =
      std::any_of(results.begin(), results.end(), [](const Result& result) { return result.inherited == nullptr; });
  if (needs_evidence) evidence.emplace(call, bad_arguments);
  for (const BadArgument& argument : bad_arguments) {  // those found just now have not been recorded as used
    for (const Cause& cause : argument.provenance->causes()) cause.origin->used = true;
  }
  for (const Result& result : results) {
    if (result.inherited != nullptr) {
      nonfinite_registry().remember(result.tensor, result.inherited);
      continue;
    }
    ++work_counters().attributed;
    evidence->select(result);
    const NonfiniteRegistry::ProvenancePtr provenance = attribute(*evidence, result.kinds);
    nonfinite_registry().remember(result.tensor, provenance);
    if (!call.plan.returns_info && replayed_region() == nullptr) record_unused_if_new(call.session, provenance);
    report_result(call, result, provenance);
  }
  report_weight_use(call, bad_arguments);
}

void propagate_unscanned(const CallContext& call, c10::ArrayRef<BadArgument> bad_arguments, const at::Tensor& result,
                         bool is_pending) {
  if (bad_arguments.empty()) return;
  const Step step{&call.plan, current_call_site(call.session, call.thread).live};
  std::vector<Cause> causes;
  for (const BadArgument& argument : bad_arguments) {
    for (const Cause& cause : argument.provenance->causes()) {
      causes.push_back(cause.extended(step, call.plan.is_data_movement, cause.kinds));
    }
  }
  nonfinite_registry().remember(result, std::make_shared<Provenance>(std::move(causes), is_pending));
}

}  // namespace torchnan
