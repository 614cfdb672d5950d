#include "device/devices.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "scan/tensor_scan.h"

namespace torchnan {
namespace {

constexpr uint64_t kSlotsAtOnce = 8192;  // the slots that are cleared at once
constexpr uint64_t kParts = Journal::kRotatingSlots / kSlotsAtOnce;

Devices& of_process = *new Devices;  // never destroyed: threads may outlive static destructors

const AtForkChild at_fork_child([] { of_process.forget_after_fork(); });

}  // namespace

Devices& devices() { return of_process; }

c10::MaybeOwned<at::Tensor> scannable(const at::Tensor& tensor) {
  using Values = c10::MaybeOwned<at::Tensor>;
  if (is_scannable_itself(tensor)) return Values::borrowed(tensor);
  const bool is_container = tensor.layout() != c10::kStrided || tensor.is_nested();
  Values values = Values::owned(is_container ? readable_on_device(tensor) : at::Tensor());
  return values->defined() && Scanner::of(values->device()) != nullptr ? std::move(values)
                                                                       : Values::owned(at::Tensor());
}

Devices::Lock::Lock(Devices& devices) : devices_(devices) {
  lock();
  if (devices_.journal_ != nullptr) return;
  try {
    devices_.journal_ = std::make_unique<Journal>();
    devices_.in_use_ = true;
  } catch (...) {
    unlock();
    throw;
  }
}

void Devices::Lock::lock() {
  devices_.mutex_.lock();
  is_held_ = true;
}

void Devices::Lock::unlock() {
  if (!is_held_) return;
  is_held_ = false;
  devices_.mutex_.unlock();
}

// Slots are cleared two parts ahead, so scans of other streams that are still pending write nowhere near.
Event* Devices::Lock::next(EventType type, const EventContext& context, const CurrentStream& stream) {
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
  if (!event->tensor.covers) event->previous = journal().last_event(event->tensor.storage);
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
template Event* Devices::Lock::add_reader(EventType, const at::Tensor&, const EventContext&, const CurrentStream&,
                                          c10::ArrayRef<EventInput>);
template Event* Devices::Lock::add_reader(EventType, const TensorSnapshot&, const EventContext&, const CurrentStream&,
                                          c10::ArrayRef<EventInput>);

bool Devices::Lock::add_to_batch(const CurrentStream& stream, at::Tensor&& kept, const Event& event, bool& has_filled) {
  Lane& lane = devices_.lane_of(*stream.scanner);
  lane.waits = true;
  const bool is_added = lane.batch.add(std::move(kept), event.number, event.limit());
  has_filled |= lane.batch.is_full();
  return is_added;
}

// The last one belongs to all scanners without a separate one.
Lane* Devices::find_lane(const Scanner& scanner) const {
  for (const std::atomic<Lane*>& place : lanes_) {
    Lane* const lane = place.load(std::memory_order_acquire);
    if (lane == nullptr || &lane->scanner == &scanner) return lane;
  }
  return nullptr;
}

// Called with the lock.
Lane& Devices::lane_of(Scanner& scanner) {
  if (Lane* known = find_lane(scanner)) return *known;
  auto* const free = std::find(lanes_.begin(), lanes_.end() - 1, nullptr);
  auto* const made = new Lane{scanner, launch_mutexes_[free - lanes_.begin()]};
  *free = made;
  return *made;
}

c10::SmallVector<Lane*, 4> Devices::lanes() const {
  c10::SmallVector<Lane*, 4> found;
  for (const std::atomic<Lane*>& place : lanes_) {
    Lane* const lane = place.load(std::memory_order_acquire);
    if (lane == nullptr) break;
    found.push_back(lane);
  }
  return found;
}

void Devices::launch(ScanList& scans, const CurrentStream& stream) {
  clear_slots(stream);
  if (scans.is_empty()) return;
  Lane* lane = find_lane(*stream.scanner);
  if (lane == nullptr) {
    const Lock locked(*this);
    lane = &lane_of(*stream.scanner);
  }
  const std::lock_guard launching(lane->launching);
  scans.launch(*stream.scanner, stream.handle);
  if (!stream.is_capturing) record_mark(*lane, stream.handle);
}

bool Devices::has_waiting() const {
  const auto all = lanes();
  return std::any_of(all.begin(), all.end(), [](const Lane* lane) { return lane->waits.load(); });
}

void Devices::launch_full_batches() {
  for (Lane* lane : lanes()) {
    if (!lane->waits) continue;
    {
      const Lock locked(*this);
      if (!lane->batch.is_full()) continue;
    }
    launch_batch(*lane);
  }
}

// A thread that finds no waiting scan of a storage must not continue before another thread has launched the scans that
// it took.
void Devices::launch_scans_of(c10::ArrayRef<const c10::StorageImpl*> storages) {
  for (Lane* lane : lanes()) {
    if (!lane->waits) continue;
    {
      const std::lock_guard launching(lane->launching);
      const Lock locked(*this);
      const auto is_held = [lane](const c10::StorageImpl* storage) { return lane->batch.holds(storage); };
      if (std::none_of(storages.begin(), storages.end(), is_held)) continue;
    }
    launch_batch(*lane);
  }
}

void Devices::launch_all() {
  for (Lane* lane : lanes()) {
    if (lane->waits) launch_batch(*lane);
  }
}

void Devices::launch_batch(Lane& lane) {
  const CurrentStream stream = lane.scanner.default_stream();
  if (stream.is_capturing) return;
  Batch::Kept kept;  // dropped last, without holding a lock
  const std::lock_guard launching(lane.launching);
  ScanList scans;
  {
    const Lock locked(*this);
    lane.batch.take(scans, kept);
  }
  if (!scans.is_empty()) {
    scans.launch(lane.scanner, stream.handle);
    record_mark(lane, stream.handle);
  }
  const Lock locked(*this);
  lane.waits = !lane.batch.is_empty();
}

// Called with `launching`.
void Devices::record_mark(Lane& lane, void* stream) {
  const auto known =
      std::find_if(lane.marks.begin(), lane.marks.end(), [&](const StreamMark& mark) { return mark.stream == stream; });
  StreamMark& mark = known == lane.marks.end() ? lane.marks.emplace_back(StreamMark{stream, nullptr}) : *known;
  lane.scanner.record_mark(stream, &mark.mark);
}

// Called with `launching`.
void Devices::follow_marks(Lane& lane) {
  for (const StreamMark& mark : lane.marks) {
    if (mark.mark != nullptr) lane.scanner.follow(mark.mark);
  }
}

// Clears in the order of the stream that the events so far ran on.
void Devices::clear_slots(const CurrentStream& stream) {
  if (!has_slots_to_clear()) return;
  const int32_t part = part_to_clear_.exchange(-1);
  if (part < 0) return;
  for (Lane* lane : lanes()) {
    const bool is_here = &lane->scanner == stream.scanner && !stream.is_capturing;
    const CurrentStream where = is_here ? stream : lane->scanner.default_stream();
    if (where.is_capturing) continue;
    const std::lock_guard launching(lane->launching);
    lane->scanner.clear(static_cast<uint32_t>(part * kSlotsAtOnce), kSlotsAtOnce, where.handle);
  }
}

// A graph may have been replayed on a stream without launches: most often the current one.
void Devices::read(Lane& lane, uint32_t first_slot, uint32_t slots, cuda::Slot* into) {
  {
    const std::lock_guard launching(lane.launching);
    const CurrentStream stream = lane.scanner.current_stream();
    if (!stream.is_capturing) record_mark(lane, stream.handle);
    follow_marks(lane);
  }
  lane.scanner.read(first_slot, slots, into);
}

void Devices::wait_for_all() {
  if (is_capturing()) return;
  for (Lane* lane : lanes()) read(*lane, 0, 0, nullptr);
}

bool Devices::is_alarmed() const {
  for (const std::atomic<Lane*>& place : lanes_) {
    const Lane* const lane = place.load(std::memory_order_acquire);
    if (lane == nullptr) return false;
    if (lane->scanner.alarm() != cuda::kNoAlarm) return true;
  }
  return false;
}

bool Devices::is_capturing() const {
  const auto all = lanes();
  return std::any_of(all.begin(), all.end(),
                     [](const Lane* lane) { return lane->scanner.current_stream().is_capturing; });
}

// Frees nothing: freeing would call a driver that the child must not use.
void Devices::forget_after_fork() {
  for (std::atomic<Lane*>& place : lanes_) place = nullptr;
  part_to_clear_ = -1;
  in_use_ = false;
  static_cast<void>(journal_.release());
  Scanner::forget_after_fork();
}

}  // namespace torchnan
