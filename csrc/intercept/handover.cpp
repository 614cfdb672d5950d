#include "intercept/handover.h"

#include <memory>
#include <utility>

#include "detection/error_containment.h"
#include "check/operators/op_traits.h"
#include "origin/make_finding.h"
#include "origin/nonfinite_registry.h"
#include "origin/origin_records.h"
#include "report/operator_name.h"
#include "check/scan/tensor_scan.h"

namespace torchnan {
namespace {

// Whether the report names a location in this process, where the value was made, written or computed with. If this
// process has only moved the value, the other one knows a better location.
bool has_place(const OriginRecord& origin) {
  if (origin.source == OriginRecord::Source::kOperation || origin.received) return !origin.facts.op.empty();
  const Entry* entry = origin.entry();
  const bool is_computed = entry != nullptr && !is_data_movement(without_namespace(entry->facts.op));
  return is_computed || origin.unwritten || has_own_line(origin);
}

HandedOver describe(const Cause& cause, DetectionSession& session, const std::string& process) {
  Finding facts = make_finding(cause, Level::kNote, Harm{}, session);
  if (facts.process.empty() && !is_inherited(*cause.origin)) facts.process = process;
  if (!has_place(*cause.origin)) {
    facts.op.clear();
    facts.stack.clear();
    facts.lineage.clear();
    facts.hint.clear();
  }
  return {cause.origin->source, cause.kinds, std::move(facts)};
}

}  // namespace

std::vector<HandedOver> describe_for_others(const at::Tensor& tensor, const std::string& process) {
  std::vector<HandedOver> causes;
  const at::Tensor values = scannable_values(tensor);
  if (!values.defined() || !nonfinite_registry().contains(values) || !kinds_of(values).any()) return causes;
  const auto provenance = nonfinite_registry().find(values);
  if (provenance == nullptr) return causes;
  for (const Cause& cause : provenance->causes()) {
    const bool is_mask = cause.origin->is_intentional() && cause.kinds == NonfiniteKinds::only_neginf();
    const auto session = is_mask ? nullptr : cause.origin->session.lock();
    if (session == nullptr) continue;
    run_contained(*session, "describing a value for another process",
                  [&] { causes.push_back(describe(cause, *session, process)); });
  }
  return causes;
}

void record_received(DetectionSession& session, const at::Tensor& tensor, std::vector<HandedOver> causes) {
  const at::Tensor values = scannable_values(tensor);
  if (!values.defined() || causes.empty() || !kinds_of(values).any()) return;
  std::vector<Cause> received;
  for (HandedOver& cause : causes) {
    auto origin = received_origin(values, cause.source, cause.kinds, std::move(cause.facts), session);
    received.push_back(Cause{std::move(origin), cause.kinds});
  }
  nonfinite_registry().remember(values, std::make_shared<Provenance>(std::move(received)));
}

}  // namespace torchnan
