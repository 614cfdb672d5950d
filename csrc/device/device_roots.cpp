#include "device/device_roots.h"

#include <cmath>

#include <ATen/ops/to.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>

#include "scan/tensor_scan.h"
#include "device/devices.h"
#include "operators/dispatch_key.h"
#include "origin/arguments.h"
#include "origin/host_queries.h"
#include "origin/make_finding.h"
#include "origin/origin_records.h"
#include "detection/error_containment.h"

namespace torchnan {
namespace {

constexpr c10::DispatchKeySet kAbove =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView |
    c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, kInterceptorKey});

at::Tensor is_alive(const Event& event) {
  Devices::Turn turn(devices());
  return turn.journal().tensor_of(event);
}

// By PyTorch's own copy, of which nobody above is told.
at::Tensor on_host(const at::Tensor& tensor) {
  const c10::impl::ExcludeDispatchKeyGuard unseen(kAbove);
  return tensor.to(c10::DeviceType::CPU);
}

void tell_tensor(const Event& event, const DetectionSession& session, Finding& facts) {
  const TensorSnapshot& then = event.tensor;
  facts.device = then.device.str();
  facts.dtype = std::string(c10::getDtypeNames(then.dtype).first);
  facts.shape = then.shape();
  facts.strides.assign(then.strides.begin(), then.strides.begin() + then.dims);
  contain(session, "counting what is on a device", [&] {
    const at::Tensor tensor = is_alive(event);
    if (!tensor.defined()) return;
    const TensorStats census = compute_stats(on_host(tensor));
    facts.nan = census.tally.nan;
    facts.posinf = census.tally.posinf;
    facts.neginf = census.tally.neginf;
    facts.first_index = census.first_index;
  });
}

// Of values that are gone only the largest magnitude was kept.
InputSummary summary_of(const EventInput& input, const Event& reader, MostOf most_of) {
  InputSummary summary;
  summary.name = reader.plan->argument_names[input.argument];
  if (input.element >= 0) summary.name += fmt::format("[{}]", input.element);
  summary.overwritten = input.overwritten;
  const auto event = Devices::Turn(devices()).copy_of(input.event);
  if (!event) return summary;
  summary.dtype = std::string(c10::getDtypeNames(event->tensor.dtype).first);
  summary.shape = event->tensor.shape();
  const at::Tensor tensor = input.overwritten ? at::Tensor() : is_alive(*event);
  if (tensor.defined()) {
    summary.tally = compute_stats(on_host(tensor)).tally;
  } else if (const auto max_abs = most_of(*event)) {
    const double magnitude = decode_magnitude(*max_abs, event->tensor.dtype);
    if (std::isfinite(magnitude)) summary.tally.absmax = magnitude;
  }
  return summary;
}

void fill_first_use(const Event& event, const DetectionSession& session, OriginRecord& root) {
  root.parameter = event.tensor.is_parameter;
  if (root.parameter || root.kinds.nan()) {
    root.owner = owner_of(event.tensor.storage, event.live, root.parameter, session);
  }
  Devices::Turn turn(devices());
  const Event* before = turn.journal().find(event.carried);
  while (is_seen(before)) before = turn.journal().find(before->carried);
  if (before == nullptr) return;
  if (before->what == Event::What::kAwaited) {
    root.collective = before->plan->name;
    return;
  }
  root.unwritten = true;
  root.allocation.live = before->live;
  root.allocator = before->plan->name;
}

}  // namespace

std::shared_ptr<OriginRecord> device_root(const Event& event, NonfiniteKinds kinds, DetectionSession& session,
                                          MostOf most_of) {
  const bool is_result = event.what == Event::What::kResult;
  const bool is_mask = event.intended_of_inputs.inf() && !kinds.nan();  // or a sum of masks
  const bool is_put_there = event.intended_of_inputs.nan() && event.plan->is_data_movement;
  const bool is_made = is_result && !event.plan->is_constant_factory && !is_mask && !is_put_there;
  const auto source = is_made     ? OriginRecord::Source::kOperation
                      : is_result ? OriginRecord::Source::kConstant
                                  : OriginRecord::Source::kExternal;
  auto root = new_root(source, *event.plan, event.site(), session);
  root->kinds = kinds;
  root->scalar = event.tensor.has_shape && event.tensor.dims == 0;
  root->facts.kind = dominant_kind(kinds);
  root->facts.output = event.output;
  tell_tensor(event, session, root->facts);
  fill_location(root->site, session, root->facts);
  if (is_made) {
    for (size_t i = 0; i < event.inputs; ++i) root->facts.inputs.push_back(summary_of(event.input[i], event, most_of));
    root->excused = ask_is_loss_scaling(root->site, session);
  } else if (!is_result) {
    fill_first_use(event, session, *root);
  }
  return root;
}

// As record_entry() has it.
void record_first_use(const Event& event, const EventInput* input, OriginRecord& root) {
  const auto session = event.session.lock();
  if (session == nullptr || event.plan->is_passthrough || root.entry() != nullptr) return;
  Entry entry;
  entry.facts.op = event.plan->name;
  entry.facts.overload = event.plan->overload;
  entry.facts.step = event.step;
  fill_location(event.site(), *session, entry.facts);
  if (input != nullptr) entry.owner = owner_of(input->storage, event.live, input->is_parameter, *session);
  if (!entry.owner) entry.owner = root.owner;
  root.enter(std::move(entry));
}

std::string owner_name(const Event& event, const DetectionSession& session) {
  const auto owner = owner_of(event.tensor.storage, event.live, true, session);
  return owner ? owner->name : "";
}

}  // namespace torchnan
