#include "device/device_roots.h"

#include <cmath>

#include <ATen/ops/to.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>

#include "check/tensor_check.h"
#include "device/devices.h"
#include "intercept/dispatch_key.h"
#include "origin/arguments.h"
#include "origin/ask.h"
#include "origin/make_finding.h"
#include "origin/roots.h"
#include "watch/contain.h"

namespace torchnan {
namespace {

constexpr c10::DispatchKeySet kAbove =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView |
    c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, kInterceptorKey});

at::Tensor still_there(const Event& event) {
  Devices::Turn turn(devices());
  return turn.journal().tensor_of(event);
}

// By PyTorch's own copy, of which nobody above is told.
at::Tensor on_host(const at::Tensor& tensor) {
  const c10::impl::ExcludeDispatchKeyGuard unseen(kAbove);
  return tensor.to(c10::DeviceType::CPU);
}

void tell_tensor(const Event& event, const Watch& watch, Finding& facts) {
  const TensorThen& then = event.tensor;
  facts.device = then.device.str();
  facts.dtype = std::string(c10::getDtypeNames(then.dtype).first);
  facts.shape = then.shape();
  facts.strides.assign(then.strides.begin(), then.strides.begin() + then.dims);
  contain(watch, "counting what is on a device", [&] {
    const at::Tensor tensor = still_there(event);
    if (!tensor.defined()) return;
    const Census census = take_census(on_host(tensor));
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
  const at::Tensor tensor = input.overwritten ? at::Tensor() : still_there(*event);
  if (tensor.defined()) {
    summary.tally = take_census(on_host(tensor)).tally;
  } else if (const auto most = most_of(*event)) {
    const double magnitude = magnitude_of(*most, event->tensor.dtype);
    if (std::isfinite(magnitude)) summary.tally.absmax = magnitude;
  }
  return summary;
}

void tell_where_it_came_in(const Event& event, const Watch& watch, Root& root) {
  root.parameter = event.tensor.is_parameter;
  if (root.parameter || root.kinds.nan()) {
    root.owner = owner_of(event.tensor.storage, event.live, root.parameter, watch);
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

std::shared_ptr<Root> device_root(const Event& event, Kinds kinds, Watch& watch, MostOf most_of) {
  const bool is_result = event.what == Event::What::kResult;
  const bool is_mask = event.given_meant.inf() && !kinds.nan();  // or a sum of masks
  const bool is_put_there = event.given_meant.nan() && event.plan->moves_values;
  const bool is_made = is_result && !event.plan->makes_constants && !is_mask && !is_put_there;
  const auto source = is_made     ? Root::Source::kOperation
                      : is_result ? Root::Source::kConstant
                                  : Root::Source::kExternal;
  auto root = new_root(source, *event.plan, event.site(), watch);
  root->kinds = kinds;
  root->scalar = event.tensor.has_shape && event.tensor.dims == 0;
  root->facts.kind = worst(kinds);
  root->facts.output = event.output;
  tell_tensor(event, watch, root->facts);
  tell_place(root->site, watch, root->facts);
  if (is_made) {
    for (size_t i = 0; i < event.inputs; ++i) root->facts.inputs.push_back(summary_of(event.input[i], event, most_of));
    root->excused = ask_is_loss_scaling(root->site, watch);
  } else if (!is_result) {
    tell_where_it_came_in(event, watch, *root);
  }
  return root;
}

// As note_entry() has it.
void enter_computation(const Event& event, const EventInput* input, Root& root) {
  const auto watch = event.watch.lock();
  if (watch == nullptr || event.plan->hands_on || root.entry() != nullptr) return;
  Entry entry;
  entry.facts.op = event.plan->name;
  entry.facts.overload = event.plan->overload;
  entry.facts.step = event.step;
  tell_place(event.site(), *watch, entry.facts);
  if (input != nullptr) entry.owner = owner_of(input->storage, event.live, input->is_parameter, *watch);
  if (!entry.owner) entry.owner = root.owner;
  root.enter(std::move(entry));
}

std::string owner_name(const Event& event, const Watch& watch) {
  const auto owner = owner_of(event.tensor.storage, event.live, true, watch);
  return owner ? owner->name : "";
}

}  // namespace torchnan
