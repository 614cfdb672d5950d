#include "origin/attribution.h"

#include <utility>
#include <vector>

#include "scan/tensor_scan.h"
#include "origin/harm.h"
#include "origin/host_evidence.h"
#include "origin/origin_records.h"
#include "call_sites/current_call_site.h"
#include "origin/replayed_region.h"
#include "origin/unused_results.h"

namespace torchnan {

BadArgument bad_argument(const CallContext& call, const at::Tensor& tensor, std::string_view name, int64_t element,
                         NonfiniteKinds kinds, bool overwritten) {
  BadArgument bad{tensor, std::string(name), element, kinds, provenance_of_argument(call, tensor, kinds)};
  bad.overwritten = overwritten;
  if (!call.plan.pointwise && !call.plan.elementwise_in_self) return bad;
  bad.count = counts_of(tensor).all();
  if (overwritten) bad.before = kinds_by_element(tensor);
  return bad;
}

void attribute(const CallContext& call, c10::SmallVectorImpl<BadArgument>& bad_arguments,
               c10::ArrayRef<Result> results) {
  HostEvidence evidence(call, bad_arguments);
  for (const BadArgument& argument : bad_arguments) {  // arguments found just now are not recorded as used yet
    for (const Cause& cause : argument.provenance->causes()) cause.origin->used = true;
  }
  for (const Result& result : results) {
    evidence.select(result);
    const NonfiniteRegistry::ProvenancePtr provenance = attribute(evidence, result.kinds);
    nonfinite_registry().remember(result.tensor, provenance);
    if (!call.plan.returns_info && replayed_region() == nullptr) record_unused_if_new(call.session, provenance);
    report_result(call, result, provenance);
  }
  report_weight_use(call, bad_arguments);
}

void propagate_unscanned(const CallContext& call, c10::ArrayRef<BadArgument> bad_arguments, const at::Tensor& result,
                         bool is_pending) {
  if (bad_arguments.empty() || !scannable_values(result).defined()) return;
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
