#include "device/device_check.h"

#include <algorithm>
#include <cmath>

#include "bounds/dtype_range.h"
#include "scan/tensor_scan.h"
#include "device/resolve.h"
#include "operators/for_each_tensor.h"
#include "origin/nonfinite_registry.h"

namespace torchnan {
void DeviceCheck::record_arguments(c10::ArrayRef<Operand> arguments) {
  Devices::Lock locked(devices());
  for (size_t place = 0; place < arguments.size(); ++place) {
    const Operand& argument = arguments[place];
    first_inputs_.push_back(inputs_.size());
    for_each_tensor(argument, [&](const at::Tensor& tensor, int64_t element) {
      record_argument(locked, tensor, static_cast<uint16_t>(place), static_cast<int32_t>(element));
      list_size_ = std::max<int64_t>(list_size_, element + 1);
    });
    if (argument.kind == Operand::Kind::kNumber) record_number(argument.number);
    if (argument.kind == Operand::Kind::kInteger && plan_.argument_names[place] == "non_blocking") {
      non_blocking_ = argument.integer != 0;
    }
  }
  launch_scans_of_mutated(locked, arguments);
  if (plan_.handling == OpPlan::Handling::kRead) {
    for (const Input& input : inputs_) locked.record_harm(HarmKind::kRead, input.tensor, plan_, session_, thread_.id());
    locked.launch_all();
  }
}

// With arguments that have only now been given to be scanned. Collectives do not say what they write.
void DeviceCheck::launch_scans_of_mutated(Devices::Lock& locked, c10::ArrayRef<Operand> arguments) const {
  for (size_t place = 0; place < arguments.size(); ++place) {
    if (plan_.mutated_schema_argument(place) == nullptr && !plan_.is_async_collective) continue;
    for_each_tensor(arguments[place], [&](const at::Tensor& tensor, int64_t) {
      if (!tensor.is_cpu() && tensor.has_storage()) locked.launch_scans_of(tensor);
    });
  }
}

void DeviceCheck::record_argument(Devices::Lock& locked, const at::Tensor& argument, uint16_t place, int32_t element) {
  const OpPlan::MutatedArgument* written = plan_.mutated_schema_argument(place);
  const at::Tensor tensor = scannable(argument);
  if (!tensor.defined()) {
    const at::Tensor on_host = nonfinite_registry().in_use() ? scannable_values(argument) : at::Tensor();
    if (on_host.defined() && nonfinite_registry().knows(on_host)) given_ = nonfinite_registry().find(on_host);
    return;
  }
  if ((written != nullptr && !written->reads_previous_value) || plan_.is_constant_factory) return;
  const EventNumber event = event_of(locked, tensor);
  if (const Event* known = locked.journal().find(event)) intended_ |= known->intended;
  inputs_.push_back(
      {tensor,
       {event, tensor.storage().unsafeGetStorageImpl(), place, element, written != nullptr, is_parameter(tensor)}});
}

Bound DeviceCheck::bound_of(const at::Tensor& tensor) const {
  const at::Tensor values = scannable(tensor);
  return values.defined() ? Devices::Lock(devices()).journal().bound_of(values) : Bound();
}

// The event that has written it; if nobody has been seen doing that, a new one.
EventNumber DeviceCheck::event_of(Devices::Lock& locked, const at::Tensor& tensor) {
  const EventNumber last = locked.journal().last_event(tensor);
  if (locked.journal().reports_every(tensor)) return last;
  Event& event = locked.add(EventType::kArgument, tensor, plan_, session_, thread_.id());
  const EventNumber number = event.number;
  if (event.previous == 0) {
    event.previous = last;  // whoever handed out the memory, or has written there before others could
    locked.journal().set_last_event(tensor, number);
  }
  check(locked, event, tensor, std::nullopt);
  return number;
}

void DeviceCheck::record_number(double number) {
  if (std::isnan(number)) numbers_ |= NonfiniteKinds::of_nan();
  if (std::isinf(number)) numbers_ |= number > 0 ? NonfiniteKinds::of_posinf() : NonfiniteKinds::of_neginf();
}

bool DeviceCheck::record_result(const at::Tensor& result, int64_t output, const std::optional<Bound>& proof) {
  const at::Tensor tensor = scannable(result);
  if (!tensor.defined()) {
    if (!result.is_cpu() && plan_.writes_in_place() && result.has_storage())
      Devices::Lock(devices()).journal().mark_stale(result);  // as integers, say
    return false;
  }
  Devices::Lock locked(devices());
  const bool is_allocation = plan_.handling == OpPlan::Handling::kAllocate;
  if (is_allocation && !plan_.returns_allocation) {
    locked.journal().forget(tensor);
    return true;
  }
  const auto type = is_allocation               ? EventType::kAllocated
                    : plan_.is_async_collective ? EventType::kPending
                                                : EventType::kResult;
  Event& event = add_reader(locked, type, tensor, output);
  event.output = output;
  event.intended = numbers_.without(NonfiniteKinds::of_nan());
  event.intended_of_inputs = numbers_ | intended_;
  const bool keeps_masks = plan_.is_data_movement || (plan_.pointwise && !plan_.absorbs_negative_infinity);
  if (keeps_masks) event.intended |= intended_;
  is_recorded_ = true;
  locked.journal().set_last_event(tensor, event.number);
  if (type != EventType::kResult) return true;
  thread_.counters().checked.add(1);
  check(locked, event, tensor, proof);
  return true;
}

// A graph is replayed whatever has become of what it was proved from: there everything is scanned.
void DeviceCheck::check(Devices::Lock& locked, Event& event, const at::Tensor& tensor,
                        const std::optional<Bound>& proof) {
  const bool is_captured = event.number >= Journal::kFirstCaptured;
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  if (proof && !is_captured) {
    event.bound = *proof;
    if (proof->masked) event.intended |= NonfiniteKinds::of_neginf();
    thread_.counters().proved.add(1);
    thread_.counters().bytes_proved.add(bytes);
  } else {
    const bool has_bound = range_of(event.tensor.dtype).limit > 0 && !event.intended.any();
    if (has_bound && !is_captured && !session_.options().exact) event.assumed = locked.assumptions().of(event);
    event.bound.max_abs = event.assumed;
    thread_.counters().bytes.add(bytes);
    locked.scan(event, tensor);
  }
  if (const Event* rest = locked.journal().find(event.previous)) event.bound = event.bound.joined(rest->bound);
}

// What an output is made of: all that was read, or, where lists are gone through together, their elements at its place.
c10::SmallVector<EventInput, Event::kMaxInputs> DeviceCheck::inputs_of(int64_t output) const {
  c10::SmallVector<EventInput, Event::kMaxInputs> read;
  for (size_t place = 0; place < first_inputs_.size(); ++place) {
    const auto begin = inputs_.begin() + first_inputs_[place];
    const auto end = place + 1 < first_inputs_.size() ? inputs_.begin() + first_inputs_[place + 1] : inputs_.end();
    const bool is_list = begin != end && begin->seen.element >= 0;
    if (!is_list || !plan_.is_foreach_elementwise || output == kAll) {
      for (auto input = begin; input != end; ++input) read.push_back(input->seen);
      continue;
    }
    const auto element = output % list_size_;
    const auto input = std::lower_bound(begin, end, element,
                                        [](const Input& one, int64_t wanted) { return one.seen.element < wanted; });
    if (input != end && input->seen.element == element) read.push_back(input->seen);
  }
  return read;
}

Event& DeviceCheck::add_reader(Devices::Lock& locked, EventType type, const at::Tensor& tensor, int64_t output) {
  const auto read = inputs_of(output);
  // The first ones stay with the event: they are what is told of it.
  EventNumber more = 0;
  size_t left = read.size();
  while (left > Event::kMaxInputs) {
    const size_t here = std::min(Event::kMaxInputs, left - Event::kMaxInputs);
    Event& rest = locked.add(EventType::kContinuation, tensor, plan_, session_, thread_.id());
    left -= here;
    rest.inputs = static_cast<uint8_t>(here);
    std::copy_n(read.begin() + left, here, rest.input.begin());
    rest.more = more;
    more = rest.number;
  }
  Event& event = locked.add(type, tensor, plan_, session_, thread_.id());
  event.given = given_;
  event.inputs = static_cast<uint8_t>(left);
  std::copy_n(read.begin(), left, event.input.begin());
  event.more = more;
  return event;
}

void DeviceCheck::forget(const at::Tensor& written) {
  const at::Tensor tensor = scannable(written);
  if (!tensor.defined()) return;
  Devices::Lock locked(devices());
  locked.journal().forget(tensor);
}

void DeviceCheck::finish() {
  bool is_alarmed = false;
  {
    Devices::Lock locked(devices());
    if (!is_recorded_ && !inputs_.empty()) record_use(locked);
    is_alarmed = locked.is_alarmed();
    if (session_.options().when == When::kOrigin) locked.launch_all();
  }
  const bool is_harm = plan_.handling == OpPlan::Handling::kRead && has_known_bad();
  if (session_.options().when == When::kOrigin || is_harm || (is_alarmed && !has_known_bad())) resolve();
}

// isfinite(x), argmax(x): a cause may have been looked at, or used, by them.
void DeviceCheck::record_use(Devices::Lock& locked) {
  add_reader(locked, EventType::kUse, inputs_.front().tensor, kAll);
}

void DeviceCheck::find_bad_arguments(c10::SmallVectorImpl<BadArgument>& bad_arguments) {
  if (inputs_.empty()) return;
  resolve();
  for (const Input& input : inputs_) {
    const auto bad = bad_event(input.seen.event);
    if (!bad) continue;
    const std::string& name = plan_.argument_names[input.seen.argument];
    bad_arguments.push_back({input.tensor, name, input.seen.element, bad->kinds, bad->provenance});
    bad_arguments.back().overwritten = input.seen.overwritten;
  }
}

}  // namespace torchnan
