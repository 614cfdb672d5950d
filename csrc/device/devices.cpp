#include "device/devices.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <c10/util/ScopeExit.h>

#include "check/scan/tensor_scan.h"

namespace torchnan {
namespace {

constexpr uint64_t kSlotsAtOnce = 8192;  // the slots that are cleared at once
constexpr uint64_t kParts = Journal::kRotatingSlots / kSlotsAtOnce;

Devices& of_process = *new Devices;  // never destroyed: threads may outlive static destructors

const AtForkChild at_fork_child([] { of_process.forget_after_fork(); });

}  // namespace

Devices& devices() { return of_process; }

at::Tensor live_tensor(const Event& event) {
  WeakTensor tensor;
  {
    Devices::Lock locked(devices());
    tensor = locked.journal().find_shared_tensor(event);
  }
  return event.scanner != nullptr && event.scanner->is_lost() ? at::Tensor() : tensor.lock();
}

c10::MaybeOwned<at::Tensor> scannable(const at::Tensor& tensor) {
  using Values = c10::MaybeOwned<at::Tensor>;
  if (is_scannable_itself(tensor)) return Values::borrowed(tensor);
  const bool is_container = tensor.layout() != c10::kStrided || tensor.is_nested();
  Values values = Values::owned(is_container ? readable_on_device(tensor) : at::Tensor());
  return values->defined() && Scanner::of(values->device()) != nullptr ? std::move(values)
                                                                       : Values::owned(at::Tensor());
}

void Devices::Lock::make_journal() {
  try {
    devices_.journal_ = std::make_unique<Journal>();
    devices_.in_use_ = true;
  } catch (...) {
    unlock();
    throw;
  }
}

// Slots are cleared two parts ahead, so scans of other streams that are still pending write nowhere near.
Event* Devices::Lock::next(EventType type, const EventContext& context, const CurrentStream& stream) {
  if (stream.is_capturing && !stream.scanner->can_be_captured()) return nullptr;
  Event* event = stream.is_capturing ? journal().add_captured() : &journal().add();
  if (event == nullptr) return nullptr;
  const uint64_t slot = event->number % cuda::kSlots;
  if (!stream.is_capturing && slot % kSlotsAtOnce == 0) {
    devices_.part_to_clear_ = static_cast<int32_t>((slot / kSlotsAtOnce + 2) % kParts);
  }
  static_cast<EventContext&>(*event) = context;
  event->type = type;
  return event;
}

template <typename Tensor>
Event* Devices::Lock::add(EventType type, const Tensor& tensor, const EventContext& context,
                          const CurrentStream& stream) {
  Event* const event = next(type, context, stream);
  if (event == nullptr) return nullptr;
  event->tensor = tensor;
  if (!event->tensor.covers) event->previous = journal().newest_event(event->tensor.storage);
  return event;
}

// The first inputs stay with the event: the report shows these.
template <typename Tensor>
Event* Devices::Lock::add_reader(EventType type, const Tensor& tensor, const EventContext& context,
                                 const CurrentStream& stream, c10::ArrayRef<EventInput> inputs) {
  EventNumber more = 0;
  while (inputs.size() > Event::kMaxInputs) {
    const size_t here = std::min(Event::kMaxInputs, inputs.size() - Event::kMaxInputs);
    Event* const rest = add(EventType::kContinuation, tensor, context, stream);
    if (rest == nullptr) return nullptr;
    rest->inputs = static_cast<uint8_t>(here);
    std::copy_n(inputs.end() - here, here, rest->input.begin());
    rest->more = more;
    more = rest->number;
    inputs = inputs.slice(0, inputs.size() - here);
  }
  Event* const event = add(type, tensor, context, stream);
  if (event == nullptr) return nullptr;
  event->inputs = static_cast<uint8_t>(inputs.size());
  std::copy(inputs.begin(), inputs.end(), event->input.begin());
  event->more = more;
  return event;
}

template Event* Devices::Lock::add(EventType, const at::Tensor&, const EventContext&, const CurrentStream&);
template Event* Devices::Lock::add(EventType, const TensorSnapshot&, const EventContext&, const CurrentStream&);
template Event* Devices::Lock::add_reader(EventType, const at::Tensor&, const EventContext&, const CurrentStream&,
                                          c10::ArrayRef<EventInput>);
template Event* Devices::Lock::add_reader(EventType, const TensorSnapshot&, const EventContext&, const CurrentStream&,
                                          c10::ArrayRef<EventInput>);

bool Devices::Lock::add_to_batch(const CurrentStream& stream, const at::Tensor& tensor, const Event& event,
                                 bool& has_filled) {
  if (!stream.scanner->may_batch()) return false;
  DeviceState& state = devices_.state_of(*stream.scanner);
  state.waits = true;
  const bool is_added = state.batch.add(tensor, event.number, event.limit());
  has_filled |= state.batch.is_full();
  return is_added;
}

// The last one belongs to all scanners without a separate one.
DeviceState* Devices::find_state(const Scanner& scanner) const {
  for (const std::atomic<DeviceState*>& slot : states_) {
    DeviceState* const state = slot.load(std::memory_order_acquire);
    if (state == nullptr || &state->scanner == &scanner) return state;
  }
  return nullptr;
}

// Called with the lock.
DeviceState& Devices::state_of(Scanner& scanner) {
  if (DeviceState* known = find_state(scanner)) return *known;
  auto* const free = std::find(states_.begin(), states_.end() - 1, nullptr);
  auto* const made = new DeviceState{scanner, launch_mutexes_[free - states_.begin()]};
  *free = made;
  return *made;
}

DeviceState& Devices::state_to_launch(Scanner& scanner) {
  if (DeviceState* known = find_state(scanner)) return *known;
  const Lock locked(*this);
  return state_of(scanner);
}

c10::SmallVector<DeviceState*, 4> Devices::states() const {
  c10::SmallVector<DeviceState*, 4> found;
  for (const std::atomic<DeviceState*>& slot : states_) {
    DeviceState* const state = slot.load(std::memory_order_acquire);
    if (state == nullptr) break;
    found.push_back(state);
  }
  return found;
}

void Devices::launch(ScanList& scans, const CurrentStream& stream) {
  clear_slots(stream);
  if (scans.is_empty()) return;
  DeviceState& state = state_to_launch(*stream.scanner);
  const std::lock_guard launching(state.launching);
  launch_or_forget(scans, *stream.scanner, stream.handle);
  note_launch(state, stream);
}

bool Devices::has_waiting() const {
  for (const std::atomic<DeviceState*>& slot : states_) {
    const DeviceState* const state = slot.load(std::memory_order_acquire);
    if (state == nullptr) return false;
    if (state->waits) return true;
  }
  return false;
}

void Devices::launch_full_batches() {
  for (DeviceState* state : states()) {
    if (!state->waits) continue;
    {
      const Lock locked(*this);
      if (!state->batch.is_full()) continue;
    }
    launch_batch(*state);
  }
}

bool Devices::has_to_prepare_writes() const {
  if (preserves_.load(std::memory_order_relaxed)) return true;
  for (const std::atomic<DeviceState*>& slot : states_) {
    const DeviceState* const state = slot.load(std::memory_order_acquire);
    if (state == nullptr) return false;
    if (state->waits || !state->scanner.is_on_default_stream()) return true;
  }
  return false;
}

// A thread that finds no waiting scan of a storage must not continue before another thread has launched the scans that
// it took.
void Devices::prepare_writes(c10::ArrayRef<const c10::StorageImpl*> storages) {
  for (DeviceState* state : states()) {
    const bool is_elsewhere = !state->scanner.is_on_default_stream();
    if (!state->waits && !is_elsewhere) continue;
    bool is_held = false, has_waited = false;
    {
      Lock locked(*this);
      is_held = state->is_launching;
      for (const c10::StorageImpl* storage : storages) {
        is_held |= state->waits && state->batch.holds(storage);
        has_waited |= is_elsewhere && locked.journal().has_waited(storage);
      }
    }
    if (is_held) launch_batch(*state);
    if (has_waited) follow_batches(*state);
  }
  if (preserves_.load(std::memory_order_relaxed)) copy_before_writes(storages);
}

// A stream that is being captured copies nothing now.
void Devices::copy_before_writes(c10::ArrayRef<const c10::StorageImpl*> storages) {
  std::vector<PendingCopies> pending;
  {
    Lock locked(*this);
    pending = preserved_.before_writes(storages, locked.journal());
    preserves_ = !preserved_.is_empty();
  }
  for (const PendingCopies& copies : pending) {
    const CurrentStream stream = copies.scanner->current_stream();
    if (stream.is_capturing) continue;
    DeviceState& state = state_to_launch(*copies.scanner);
    const std::lock_guard launching(state.launching);
    launch_copies(copies, stream.handle);
    note_launch(state, stream);
  }
}

std::vector<std::shared_ptr<PreservedStorage>> Devices::preserve(c10::ArrayRef<at::Tensor> tensors, int64_t max_bytes) {
  std::vector<std::shared_ptr<PreservedStorage>> all, made;
  std::unordered_map<const c10::StorageImpl*, std::shared_ptr<PreservedStorage>> by_storage;
  {
    Lock locked(*this);
    for (const at::Tensor& tensor : tensors) {
      auto& preserved = by_storage[storage_of(tensor)];
      if (preserved == nullptr) preserved = preserved_.find(storage_of(tensor), locked.journal());
      if (preserved == nullptr) {
        preserved = std::make_shared<PreservedStorage>(tensor, locked.journal().last_event(tensor));
        made.push_back(preserved);
      }
      all.push_back(preserved);
    }
  }
  give_room(made, max_bytes);
  Lock locked(*this);
  for (const auto& preserved : made) preserved_.add(preserved);
  preserves_ = !preserved_.is_empty();
  return all;
}

// Reserving memory may wait for a device.
void Devices::give_room(std::vector<std::shared_ptr<PreservedStorage>> storages, int64_t max_bytes) {
  std::stable_sort(storages.begin(), storages.end(), [](const auto& a, const auto& b) {
    return std::pair(a->scanner(), !a->is_weight()) < std::pair(b->scanner(), !b->is_weight());
  });
  const std::lock_guard reserving(reserving_);
  for (auto first = storages.begin(); first != storages.end();) {
    Scanner* const scanner = (*first)->scanner();
    const auto last =
        std::find_if(first, storages.end(), [scanner](const auto& one) { return one->scanner() != scanner; });
    if (scanner != nullptr) rooms_.give_room(*scanner, c10::ArrayRef(&*first, last - first), max_bytes);
    first = last;
  }
}

void Devices::launch_all() {
  for (DeviceState* state : states()) {
    if (state->waits) launch_batch(*state);
  }
}

void Devices::launch_batch(DeviceState& state) {
  Batch::Kept kept;  // dropped last, without holding a lock
  const std::lock_guard launching(state.launching);
  const CurrentStream stream = state.scanner.default_stream();
  if (stream.is_capturing) return;
  ScanList scans;
  {
    const Lock locked(*this);
    state.batch.take(scans, kept);
    state.is_launching = true;
  }
  const auto end = c10::make_scope_exit([&] {
    const Lock locked(*this);
    state.waits = !state.batch.is_empty();
    state.is_launching = false;
  });
  if (scans.is_empty()) return;
  launch_or_forget(scans, state.scanner, stream.handle);
  note_launch(state, stream);
}

// A scan that the device refuses finds nothing, so nothing is known of the result any more. Called with `launching`.
void Devices::launch_or_forget(ScanList& scans, const Scanner& scanner, void* stream) {
  try {
    scans.launch(scanner, stream);
  } catch (const std::exception&) {
    {
      const Lock locked(*this);
      scans.for_each_number([this](EventNumber number) { journal_->forget_scan(number); });
    }
    scans.clear();
    throw;
  }
}

// A mark costs as much as a launch. The default stream exists as long as its device, so its mark can be recorded when
// somebody wants to follow it; another stream may be gone by then. Called with `launching`.
void Devices::note_launch(DeviceState& state, const CurrentStream& stream) {
  if (stream.is_capturing) return;
  if (stream.is_default) {
    state.default_is_unmarked = true;
  } else {
    record_mark(state, stream.handle);
  }
}

// Called with `launching`.
void Devices::mark_default(DeviceState& state) {
  if (!state.default_is_unmarked) return;
  const CurrentStream stream = state.scanner.default_stream();
  if (stream.is_capturing) return;
  record_mark(state, stream.handle);
  state.default_is_unmarked = false;
}

// Called with `launching`.
StreamMark& Devices::record_mark(DeviceState& state, void* stream) {
  const auto known = std::find_if(state.marks.begin(), state.marks.end(),
                                  [&](const StreamMark& mark) { return mark.stream == stream; });
  StreamMark& mark = known == state.marks.end() ? state.marks.emplace_back(StreamMark{stream, nullptr}) : *known;
  state.scanner.record_mark(stream, &mark.mark);
  return mark;
}

// Called with `launching`.
void Devices::follow_marks(DeviceState& state) {
  for (const StreamMark& mark : state.marks) {
    if (mark.mark != nullptr) state.scanner.follow(mark.mark, state.scanner.own_stream());
  }
}

// Makes the calling thread's current stream wait for the batches that were launched.
void Devices::follow_batches(DeviceState& state) {
  const std::lock_guard launching(state.launching);
  const CurrentStream stream = state.scanner.current_stream();
  const CurrentStream batches = state.scanner.default_stream();
  if (stream.is_capturing || batches.is_capturing) return;
  const StreamMark& mark = record_mark(state, batches.handle);
  state.default_is_unmarked = false;
  if (mark.mark != nullptr) state.scanner.follow(mark.mark, stream.handle);
}

// Clears in the order of the stream that the events so far ran on.
void Devices::clear_slots(const CurrentStream& stream) {
  if (!has_slots_to_clear()) return;
  const int32_t part = part_to_clear_.exchange(-1);
  if (part < 0) return;
  for (DeviceState* state : states()) {
    const bool is_here = &state->scanner == stream.scanner && !stream.is_capturing;
    const CurrentStream where = is_here ? stream : state->scanner.default_stream();
    if (where.is_capturing) continue;
    const std::lock_guard launching(state->launching);
    auto again = c10::make_scope_exit([&] { part_to_clear_ = part; });  // a refused clearing
    state->scanner.clear(static_cast<uint32_t>(part * kSlotsAtOnce), kSlotsAtOnce, where.handle);
    again.release();
  }
}

// A graph may have been replayed on a stream without launches: most often the current one.
bool Devices::read(DeviceState& state, uint32_t first_slot, uint32_t slots, cuda::Slot* into) {
  {
    const std::lock_guard launching(state.launching);
    note_launch(state, state.scanner.current_stream());
    mark_default(state);
    follow_marks(state);
  }
  return state.scanner.read(first_slot, slots, into);
}

void Devices::wait_for_all() {
  if (is_capturing()) return;
  for (DeviceState* state : states()) read(*state, 0, 0, nullptr);
}

bool Devices::is_alarmed() const {
  for (const std::atomic<DeviceState*>& slot : states_) {
    const DeviceState* const state = slot.load(std::memory_order_acquire);
    if (state == nullptr) return false;
    if (state->scanner.alarm() != cuda::kNoAlarm) return true;
  }
  return false;
}

bool Devices::has_lost() const {
  const auto all = states();
  return std::any_of(all.begin(), all.end(), [](const DeviceState* state) { return !state->scanner.answers(); });
}

bool Devices::is_capturing() const {
  const auto all = states();
  return std::any_of(all.begin(), all.end(),
                     [](const DeviceState* state) { return state->scanner.current_stream().is_capturing; });
}

// Frees nothing: freeing would call a driver that the child must not use.
void Devices::forget_after_fork() {
  for (std::atomic<DeviceState*>& slot : states_) slot = nullptr;
  part_to_clear_ = -1;
  in_use_ = false;
  static_cast<void>(journal_.release());
  Scanner::forget_after_fork();
}

}  // namespace torchnan
