#include "device/device_evidence.h"

#include <cmath>
#include <utility>

#include "check/scan/tensor_scan.h"
#include "device/device_stats.h"
#include "device/devices.h"
#include "device/region_mark.h"
#include "origin/arguments.h"
#include "origin/runtime_queries.h"
#include "origin/make_finding.h"
#include "origin/origin_records.h"
#include "origin/replayed_region.h"
#include "report/hint.h"
#include "detection/error_containment.h"
#include "base/format.h"

namespace torchnan {
namespace {

constexpr const char* kCounting = "counting non-finite values on a device";
constexpr const char* kHeldNext = "; its next call is replayed if it makes one too";

void fill_tensor(const Event& event, const DetectionSession& session, Finding& facts) {
  const TensorSnapshot& then = event.tensor;
  facts.device = then.device.str();
  facts.dtype = std::string(c10::getDtypeNames(then.dtype).first);
  facts.shape = then.sizes().vec();
  facts.strides = then.strides().vec();
  run_contained(session, kCounting, [&] {
    const at::Tensor tensor = live_tensor(event);
    if (!tensor.defined()) return;
    const TensorStats stats = compute_stats_on_device(tensor);
    facts.nan = stats.tally.nan;
    facts.posinf = stats.tally.posinf;
    facts.neginf = stats.tally.neginf;
    facts.first_index = stats.first_index;
  });
}

// If the values are gone, only the largest magnitude is known.
InputSummary summary_of(const EventInput& input, const Event& reader, const DetectionSession& session,
                        LargestWordOf largest_word_of) {
  InputSummary summary;
  summary.name = reader.plan->argument_names[input.argument];
  if (input.element >= 0) summary.name += format_text("[{}]", input.element);
  summary.overwritten = input.overwritten;
  const auto event = Devices::Lock(devices()).copy_of(input.event);
  if (!event) return summary;
  summary.dtype = std::string(c10::getDtypeNames(event->tensor.dtype).first);
  summary.shape = event->tensor.sizes().vec();
  const at::Tensor tensor = input.overwritten ? at::Tensor() : live_tensor(*event);
  const auto count_values = [&] { summary.tally = compute_stats_on_device(tensor).tally; };
  if (tensor.defined() && run_contained(session, kCounting, count_values)) return summary;
  if (const auto most = largest_word_of(*event)) {
    const double magnitude = decode_magnitude(*most, event->tensor.dtype);
    if (std::isfinite(magnitude)) summary.tally.absmax = magnitude;
  }
  return summary;
}

void fill_external_origin(const Event& event, const DetectionSession& session, OriginRecord& origin) {
  origin.parameter = event.tensor.is_parameter;
  if (origin.parameter || origin.kinds.nan()) {
    origin.owner = owner_of({event.tensor.storage}, event.live, origin.parameter, session);
  }
  Devices::Lock locked(devices());
  const Event* before = locked.journal().find(event.previous);
  bool is_evicted = false;
  while (is_seen(before)) {
    is_evicted |= locked.journal().is_evicted(before->previous);
    before = locked.journal().find(before->previous);
  }
  is_evicted |= before == nullptr && locked.journal().is_evicted(event.previous);
  if (is_evicted) origin.facts.hint = hint_for_evicted_origin();
  if (before == nullptr) return;
  if (before->type == EventType::kPending) {
    origin.collective = before->plan->name;
    return;
  }
  origin.unwritten = true;
  origin.allocation.live = before->live;
  origin.allocator = before->plan->name;
}

// Marks a region that made a bad value. Returns the region as the report names it.
std::shared_ptr<const ReplayedRegion> marked(std::shared_ptr<const ReplayedRegion> region, DetectionSession& session) {
  if (region->mark == nullptr || !region->mark->set(session)) return region;
  ReplayedRegion marked = *region;
  marked.facts.obstacle += kHeldNext;
  return std::make_shared<const ReplayedRegion>(std::move(marked));
}

}  // namespace

DeviceEvidence::DeviceEvidence(const Event& event, c10::ArrayRef<BadInput> bad_inputs, DetectionSession& session,
                               LargestWordOf largest_word_of)
    : event_(event),
      bad_inputs_(bad_inputs),
      session_(session),
      largest_word_of_(largest_word_of),
      site_(event.site()) {
  for (const BadInput& input : bad_inputs) arguments_.push_back({input.bad.kinds, input.bad.provenance});
  if (event.given == nullptr) return;
  NonfiniteKinds kinds;
  for (const Cause& cause : event.given->causes()) kinds |= cause.kinds;
  arguments_.push_back({kinds, event.given});
}

std::shared_ptr<OriginRecord> DeviceEvidence::new_origin(NonfiniteKinds kinds) {
  return device_origin(event_, kinds, session_, largest_word_of_);
}

void DeviceEvidence::record_first_use(size_t argument, OriginRecord& origin) {
  torchnan::record_first_use(origin, *event_.plan, site_, session_, [&]() -> std::optional<Owner> {
    if (is_given_by_host(argument)) return std::nullopt;
    const EventInput& input = bad_inputs_[argument].input;
    return owner_of({input.storage}, event_.live, input.is_parameter, session_);
  });
}

std::shared_ptr<OriginRecord> device_origin(const Event& event, NonfiniteKinds kinds, DetectionSession& session,
                                            LargestWordOf largest_word_of) {
  const bool is_border = event.region != nullptr && event.region->is_border();
  const bool is_result = event.type == EventType::kResult && !is_border;
  const bool is_mask = event.intended_of_inputs.inf() && !kinds.nan();  // or a sum of masks
  const bool is_put_there = event.intended_of_inputs.nan() && event.plan->is_data_movement;
  const bool is_written = is_result && (event.plan->is_constant_factory || is_mask || is_put_there);
  // A copy from the host whose source no operation was seen to write: the copy did not make the value.
  const bool is_brought = is_result && !is_written && event.plan->is_data_movement && event.inputs == 0;
  const bool is_made = is_result && !is_written && !is_brought;
  const auto source = is_made      ? OriginRecord::Source::kOperation
                      : is_written ? OriginRecord::Source::kConstant
                                   : OriginRecord::Source::kExternal;
  auto origin = new_origin_record(source, *event.plan, event.site(), session);
  origin->kinds = kinds;
  origin->scalar = event.tensor.has_shape && event.tensor.dims == 0;
  origin->facts.kind = dominant_kind(kinds);
  origin->facts.output = event.output;
  origin->region = is_border ? marked(event.region, session) : event.region;
  origin->border = origin->foreign = is_border;
  fill_tensor(event, session, origin->facts);
  const Finding& counted = origin->facts;  // zeros if the values are gone; a scan does not know the sign of an infinity
  if (counted.nan + counted.posinf + counted.neginf > 0)
    origin->kinds = NonfiniteKinds(counted.nan > 0, counted.posinf > 0, counted.neginf > 0);
  fill_location(origin->site, session, origin->facts);
  if (is_made) {
    for (size_t i = 0; i < event.inputs; ++i)
      origin->facts.inputs.push_back(summary_of(event.input[i], event, session, largest_word_of));
    origin->seen_by_scaler = ask_is_loss_scaling(origin->site, session);
  } else if (!is_written && !is_border) {
    fill_external_origin(event, session, *origin);
  }
  if (event.region != nullptr && event.region->is_backward) origin->facts.phase = Phase::kBackward;
  return origin;
}

std::string owner_name(const Event& event, const DetectionSession& session) {
  const auto owner = owner_of({event.tensor.storage}, event.live, true, session);
  return owner ? owner->name : "";
}

}  // namespace torchnan
