#include "device/device_check.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "check/bounds/bound_cache.h"
#include "device/harm_recorder.h"
#include "device/recorded_bounds.h"
#include "device/resolve.h"
#include "check/operators/for_each_tensor.h"
#include "check/operators/op_traits.h"
#include "origin/arguments.h"
#include "origin/nonfinite_registry.h"
#include "origin/replayed_region.h"
#include "check/scan/storage_of.h"
#include "check/scan/tensor_scan.h"

namespace torchnan {
namespace {

constexpr std::string_view kNonBlocking = "non_blocking";

}  // namespace

// Null if the tensor cannot be scanned.
const at::Tensor* DeviceCheck::values_of(const at::Tensor& tensor) {
  if (is_scannable_itself(tensor)) return &tensor;
  const auto values = scannable(tensor);
  return values->defined() ? &containers_.emplace_front(*values) : nullptr;
}

template <typename Given, typename Visit>
void DeviceCheck::for_each_run(Given& given, Visit&& visit) {
  for (auto first = given.begin(); first != given.end();) {
    const c10::Device device = first->values->device();
    const auto last =
        std::find_if(first, given.end(), [device](const auto& one) { return one.values->device() != device; });
    scans_.choose(device);
    visit(first, last);
    first = last;
  }
}

void DeviceCheck::record_arguments(c10::ArrayRef<Operand> arguments) {
  context_ = EventContext(plan_, session_, thread_.id(), site_);
  collect_inputs(arguments);
  for_each_run(inputs_, [this](auto first, auto last) {
    Devices::Lock locked(devices());
    for (auto one = first; one != last; ++one) record_argument(locked, *one, read_[one - inputs_.begin()]);
  });
  scans_.launch();
  if (plan_.asserts_finite) devices().launch_all();  // a scan that waits would never run
  if (plan_.writes_in_place() || plan_.is_async_collective) prepare_writes(arguments);
  for (size_t index = 0; plan_.is_async_collective && index < arguments.size(); ++index) {
    if (plan_.is_written_by_collective(index)) record_pending(arguments[index]);
  }
  if (plan_.handling == OpPlan::Handling::kRead) record_read(arguments);
}

DeviceCheck::Arguments DeviceCheck::arguments() const { return {{read_.begin(), read_.end()}, intended_, given_}; }

void DeviceCheck::begin_results(const Arguments& arguments, std::shared_ptr<const ReplayedRegion> region) {
  context_ = EventContext(plan_, session_, thread_.id(), site_);
  read_.assign(arguments.read.begin(), arguments.read.end());
  intended_ = arguments.intended;
  given_ = arguments.given;
  region_ = std::move(region);
}

// Finds the tensors on devices that the call reads, and the non-finite kinds of its numbers.
void DeviceCheck::collect_inputs(c10::ArrayRef<Operand> arguments) {
  for (size_t index = 0; index < arguments.size(); ++index) {
    const Operand& argument = arguments[index];
    first_inputs_.push_back(inputs_.size());
    if (argument.kind == Operand::Kind::kNumber) record_number(argument.number);
    if (argument.kind == Operand::Kind::kInteger && plan_.argument_names[index] == kNonBlocking) {
      non_blocking_ = argument.integer != 0;
    }
    const OpPlan::MutatedArgument* mutated = plan_.mutated_schema_argument(index);
    const bool is_metadata = plan_.is_constant_factory || (plan_.reads_metadata_of_first && index == 0);
    const bool is_read = (mutated == nullptr || mutated->reads_previous_value) && !is_metadata;
    if (argument.kind == Operand::Kind::kValues) {
      read_.reserve(read_.size() + argument.count);
      inputs_.reserve(inputs_.size() + argument.count);
    }
    for_each_tensor(argument, [&](const at::Tensor& tensor, int64_t element) {
      list_size_ = std::max<int64_t>(list_size_, element + 1);
      if (is_read)
        add_argument(tensor, static_cast<uint16_t>(index), static_cast<int32_t>(element), mutated != nullptr);
    });
  }
  results_.reserve(static_cast<size_t>(list_size_));
}

// Collectives do not declare their mutated arguments.
void DeviceCheck::prepare_writes(c10::ArrayRef<Operand> arguments) const {
  if (!devices().has_to_prepare_writes()) return;
  c10::SmallVector<const c10::StorageImpl*, 8> mutated;
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (plan_.mutated_schema_argument(index) == nullptr && !plan_.is_async_collective) continue;
    for_each_tensor(arguments[index], [&](const at::Tensor& tensor, int64_t) {
      if (!tensor.is_cpu() && tensor.has_storage()) {
        mutated.push_back(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
      }
    });
  }
  devices().prepare_writes(mutated);
}

// Called before the call, which may consume its arguments.
void DeviceCheck::record_pending(const Operand& argument) {
  for_each_tensor(argument, [&](const at::Tensor& given, int64_t) {
    const auto tensor = scannable(given);
    if (!tensor->defined()) return;
    scans_.choose(tensor->device());
    Devices::Lock locked(devices());
    const Event* const event = add_reader(locked, EventType::kPending, *tensor, kAll);
    if (event != nullptr) locked.journal().set_last_event(*tensor, event->number);
    is_recorded_ = true;
  });
  if (argument.kind != Operand::Kind::kValues) return;
  const c10::ArrayRef<c10::IValue> values(static_cast<const c10::IValue*>(argument.first), argument.count);
  for (const c10::IValue& list : values) {
    if (list.isList()) record_pending(operand(list));  // for all_gather(): a list for each device
  }
}

void DeviceCheck::record_read(c10::ArrayRef<Operand> arguments) {
  HarmRecorder harm(HarmKind::kRead, context_, session_);
  for (const Operand& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor, int64_t) { harm.add(tensor); });
  }
  harm.finish();
  devices().launch_all();
}

void DeviceCheck::add_argument(const at::Tensor& argument, uint16_t index, int32_t element, bool is_mutated) {
  const at::Tensor* const values = values_of(argument);
  if (values == nullptr) {
    const at::Tensor on_host = nonfinite_registry().in_use() ? scannable_values(argument) : at::Tensor();
    if (on_host.defined() && nonfinite_registry().contains(on_host)) given_ = nonfinite_registry().find(on_host);
    return;
  }
  read_.push_back({0, storage_of(*values), element, index, is_mutated, is_parameter(*values)});
  Input& input = inputs_.emplace_back();
  input.tensor = &argument;
  input.values = values;
}

void DeviceCheck::record_argument(Devices::Lock& locked, Input& argument, EventInput& read) {
  scans_.make_room(locked);
  argument.known = locked.journal().look_up(*argument.values);
  read.event = argument.known.last;
  read.is_alone = argument.known.is_alone;
  if (!argument.known.is_reported) {
    const EventNumber event = record_unknown_argument(locked, argument, read);
    if (event != argument.known.last) {  // the current values, none of which is intentional
      argument.known = locked.journal().look_up(*argument.values);
      argument.known.intended = {};
    }
    read.event = event;
    read.is_alone = argument.known.is_alone;
  }
  intended_ |= argument.known.intended;
}

size_t DeviceCheck::end_of_inputs(size_t index) const {
  return index + 1 < first_inputs_.size() ? first_inputs_[index + 1] : read_.size();
}

// The tensors of a list are in the order of its elements.
const DeviceCheck::Input* DeviceCheck::find_input(const at::Tensor& tensor) const {
  if (inputs_.size() <= kMaxSearched) {
    for (const Input& input : inputs_) {
      if (input.tensor->is_same(tensor)) return &input;
    }
    return nullptr;
  }
  const std::less<const at::Tensor*> is_before;
  for (size_t index = 0; index < first_inputs_.size(); ++index) {
    const auto* const end = inputs_.begin() + end_of_inputs(index);
    const auto* const input =
        std::lower_bound(inputs_.begin() + first_inputs_[index], end, &tensor,
                         [&](const Input& one, const at::Tensor* wanted) { return is_before(one.tensor, wanted); });
    if (input != end && input->tensor == &tensor) return input;
  }
  return nullptr;
}

// Copies only the bound, unlike known_of().
Bound DeviceCheck::bound_of(const at::Tensor& tensor) const {
  const Input* const input = find_input(tensor);
  return input != nullptr ? input->known.bound : recorded_knowledge(tensor).bound;
}

Journal::RecordedKnowledge DeviceCheck::known_of(const at::Tensor& tensor) const {
  const Input* const input = find_input(tensor);
  return input != nullptr ? input->known : recorded_knowledge(tensor);
}

// Returns the event that wrote the argument; adds one if no write was observed.
EventNumber DeviceCheck::record_unknown_argument(Devices::Lock& locked, const Input& argument, const EventInput& read) {
  const at::Tensor& tensor = *argument.values;
  const Journal::RecordedKnowledge& known = argument.known;
  const bool is_unscanned = is_unscanned_argument(plan_.name, plan_.argument_names[read.argument]);
  if (is_unscanned && !is_seen(locked.journal().find(known.last))) return known.last;
  const Event* const event = scans_.add_unknown(locked, tensor, known.last, context_);
  return event == nullptr ? known.last : event->number;
}

void DeviceCheck::record_number(double number) {
  if (std::isnan(number)) numbers_ |= NonfiniteKinds::only_nan();
  if (std::isinf(number)) numbers_ |= number > 0 ? NonfiniteKinds::only_posinf() : NonfiniteKinds::only_neginf();
}

EventType DeviceCheck::type_of_result(int64_t output) const {
  const bool is_unwritten = plan_.has_unwritten_output && output == 1;
  if (is_unwritten || plan_.handling == OpPlan::Handling::kAllocate) return EventType::kAllocated;
  return plan_.is_async_collective ? EventType::kPending : EventType::kResult;
}

bool DeviceCheck::add_result(const at::Tensor& result, int64_t output, const Prediction& known) {
  const at::Tensor* const values = values_of(result);
  if (values == nullptr) {
    if (!result.is_cpu() && plan_.writes_in_place() && result.has_storage())
      Devices::Lock(devices()).journal().mark_stale(result);  // written as integers, for example
    return false;
  }
  results_.push_back({values, output, known});
  return true;
}

// Only a result without other references is new; an argument that is returned is not. Running statistics may wait, too:
// only a batch norm writes there. The storage of a waiting result has one reference more, which autograd would see. A
// region may write again into the memory of its results, unseen.
bool DeviceCheck::may_wait(const Result& result) const {
  const at::Tensor& tensor = *result.values;
  const bool is_new = tensor.use_count() == 1 && tensor.unsafeGetTensorImpl()->unsafe_storage().use_count() == 1;
  const bool may_be_held = plan_.updates_statistics ? plan_.out_arguments == 0 : is_new && !plan_.writes_in_place();
  const bool is_scanned = !result.predicted.is_proved || result.predicted.is_rescanned;
  const bool is_in_backward = context_.node != nullptr;
  return may_be_held && is_scanned && !is_in_backward && region_ == nullptr && scans_.stream().is_default &&
         !scans_.stream().is_capturing && type_of_result(result.output) == EventType::kResult &&
         tensor.is_non_overlapping_and_dense();
}

void DeviceCheck::record_results() {
  if (results_.empty()) return;
  const auto& region = region_ != nullptr ? region_ : replayed_region();
  for_each_run(results_, [&](auto first, auto last) {
    Devices::Lock locked(devices());
    for (auto one = first; one != last; ++one) record_result(locked, *one, region);
  });
  results_.clear();
}

void DeviceCheck::record_result(Devices::Lock& locked, const Result& result,
                                const std::shared_ptr<const ReplayedRegion>& region) {
  scans_.make_room(locked);
  const at::Tensor& tensor = *result.values;
  const EventType type = type_of_result(result.output);
  const bool is_unknown =
      type == EventType::kAllocated && plan_.handling == OpPlan::Handling::kAllocate && !plan_.returns_allocation;
  Event* const event = is_unknown ? nullptr : add_reader(locked, type, tensor, result.output);
  if (event == nullptr) {
    if (is_unknown) {
      locked.journal().forget(tensor);
    } else {  // a captured write without a scan: replays repeat it unseen
      locked.journal().record_exported(tensor.storage());
      thread_.counters().count_skipped(Skip::kDevice);
    }
    return;
  }
  event->output = result.output;
  event->region = region;
  if (region != nullptr && region->step != 0) event->step = region->step;
  event->intended = numbers_.without(NonfiniteKinds::only_nan());
  event->intended_of_inputs = numbers_ | intended_;
  const bool keeps_masks = plan_.is_data_movement || (plan_.pointwise && !plan_.absorbs_negative_infinity);
  if (keeps_masks) event->intended |= intended_;
  is_recorded_ = true;
  locked.journal().set_last_event(tensor, event->number);
  if (type != EventType::kResult) return;
  thread_.counters().checked.add(1);
  scans_.fill_bound(locked, *event, tensor, result.predicted);
  if (!event->is_proved) scans_.add(locked, *event, tensor, may_wait(result));
  if (plan_.proves_nonnegative_input) prove_nonnegative_argument(locked, result.output);
  const Moments::Claim* const claim = result.predicted.claim;
  if (claim != nullptr) thread_.moments().record(tensor, *claim, locked.journal().look_up(tensor).write_number());
}

// A square root is not finite if an element was below zero; the scan guarantees that. If some tensors of a list are on
// the host, the indices differ and nothing is proved.
void DeviceCheck::prove_nonnegative_argument(Devices::Lock& locked, int64_t output) const {
  const auto index = static_cast<size_t>(output);
  if (index >= end_of_inputs(0) || read_[index].element > output) return;
  const at::Tensor& argument = *inputs_[index].values;
  if (!covers_whole_storage(argument, *storage_of(argument))) return;
  Event* const written = locked.journal().find(read_[index].event);
  const bool is_all = written != nullptr && written->tensor.covers;
  if (is_all && written->number < Journal::kFirstCaptured) written->bound.nonnegative = true;
}

// Returns what an element of the result of an elementwise call on lists reads: the elements at the same index.
c10::SmallVector<EventInput, Event::kMaxInputs> DeviceCheck::read_by_element(int64_t element) const {
  c10::SmallVector<EventInput, Event::kMaxInputs> read;
  for (size_t index = 0; index < first_inputs_.size(); ++index) {
    const auto* const first = read_.begin() + first_inputs_[index];
    const auto* const end = read_.begin() + end_of_inputs(index);
    if (first == end) continue;
    if (first->element < 0) {  // it is no list
      read.append(first, end);
    } else if (element < end - first && first[element].element == element) {
      read.push_back(first[element]);
    } else {  // some of the list are on the host
      const auto is_before = [](const EventInput& one, int64_t wanted) { return one.element < wanted; };
      const auto* const input = std::lower_bound(first, end, element, is_before);
      if (input != end && input->element == element) read.push_back(*input);
    }
  }
  return read;
}

// The outputs of a compiled region are many, and so are its inputs: all events share those that do not fit into one.
template <typename Tensor>
Event* DeviceCheck::add_reader(Devices::Lock& locked, EventType type, const Tensor& tensor, int64_t output) {
  Event* event = nullptr;
  if (reader_of_all_ != 0) {
    event = locked.add(type, tensor, context_, scans_.stream());
    const Event* const first = locked.journal().find(reader_of_all_);
    if (event != nullptr && first != nullptr) {
      event->inputs = first->inputs;
      event->input = first->input;
      event->more = first->more;
    }
  } else {
    const bool is_of_element = plan_.is_foreach_elementwise && output != kAll;
    event = is_of_element
                ? locked.add_reader(type, tensor, context_, scans_.stream(), read_by_element(output % list_size_))
                : locked.add_reader(type, tensor, context_, scans_.stream(), read_);
    if (event != nullptr && region_ != nullptr) reader_of_all_ = event->number;
  }
  if (event != nullptr) event->given = given_;
  return event;
}

void DeviceCheck::forget(const at::Tensor& written) {
  const auto tensor = scannable(written);
  if (tensor->defined()) Devices::Lock(devices()).journal().forget(*tensor);
}

void DeviceCheck::record() {
  record_results();
  if (scans_.stream().scanner == nullptr) return;
  if (!is_recorded_ && !read_.empty()) record_use();
  scans_.finish();
}

void DeviceCheck::finish() {
  record();
  heed_alarm(session_, plan_.handling == OpPlan::Handling::kRead);
}

// isfinite(x), argmax(x): they may have checked, or used, the value of a cause.
void DeviceCheck::record_use() {
  Devices::Lock locked(devices());
  const Event* const first = locked.journal().find(read_.front().event);
  TensorSnapshot snapshot = first != nullptr ? first->tensor : TensorSnapshot();
  snapshot.covers = true;
  add_reader(locked, EventType::kUse, snapshot, kAll);
}

void DeviceCheck::find_bad_arguments(TensorAt tensor_at, c10::SmallVectorImpl<BadArgument>& bad_arguments) {
  if (read_.empty()) return;
  record_results();
  resolve(Delivery::kNow);
  for (const EventInput& input : read_) {
    const auto bad = bad_event(input.event);
    if (!bad) continue;
    const std::string& name = plan_.argument_names[input.argument];
    const at::Tensor tensor = tensor_at(input.argument, input.element);
    bad_arguments.push_back({tensor, name, input.element, bad->kinds, bad->provenance});
    bad_arguments.back().overwritten = input.overwritten;
  }
}

}  // namespace torchnan
