#include "device/stream_scans.h"

#include <algorithm>

#include "check/bounds/dtype_range.h"

namespace torchnan {

void StreamScans::choose(c10::Device device) {
  Scanner* const scanner = Scanner::of(device);
  if (scanner == stream_.scanner) return;
  if (!scans_.is_empty()) launch();
  stream_ = scanner->current_stream();
}

void StreamScans::launch_unlocked(Devices::Lock& locked) {
  locked.unlock();
  launch();
  locked.lock();
}

// A graph may be replayed after the premises of a proof have changed: in a graph, everything is scanned.
void StreamScans::fill_bound(Devices::Lock& locked, Event& event, const at::Tensor& tensor,
                             const Prediction& predicted) {
  Counters& counters = thread_.counters();
  const bool is_captured = event.number >= Journal::kFirstCaptured;
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  event.is_proved = predicted.is_proved && !predicted.is_rescanned && !is_captured;
  event.is_rescanned = predicted.is_rescanned && !is_captured && !predicted.bound.masked;
  if (event.is_proved) {
    event.bound = predicted.bound;
    if (predicted.bound.masked) event.intended |= NonfiniteKinds::only_neginf();
    counters.proved.add(1);
    counters.bytes_proved.add(bytes);
  } else {
    const bool may_assume = !is_captured && !session_.scans_everything();
    event.expects_infinity = may_assume && !event.is_rescanned && locked.assumptions().expects_infinity(event);
    const bool has_bound = range_of(event.tensor.dtype).limit > 0 && !event.intended.any() && !event.expects_infinity;
    if (has_bound && may_assume) event.assumed = locked.assumptions().of(event);
    if (event.is_rescanned) event.assumed = predicted.bound.max_abs;
    if (!is_captured && !predicted.bound.masked) event.bound = predicted.bound;
    event.bound.max_abs = std::min(event.bound.max_abs, event.assumed);
    counters.bytes.add(bytes);
    counters.device_bytes.add(bytes);
  }
}

// No bound is assumed for a tensor that cannot be scanned.
void StreamScans::add(Devices::Lock& locked, Event& event, const at::Tensor& tensor, bool may_wait) {
  const bool waits = may_wait && locked.add_to_batch(stream_, tensor, event, has_filled_batch_);
  if (waits || scans_.add(tensor, event.number, event.limit())) {
    event.scanner = stream_.scanner;
    event.has_waited = waits;
    return;
  }
  event.bound = {};
  locked.journal().mark_stale(tensor);
  thread_.counters().count_skipped(Skip::kDevice);
}

// The last event may have handed out the memory, or have written there before it became shared.
Event* StreamScans::add_unknown(Devices::Lock& locked, const at::Tensor& tensor, EventNumber last,
                                const EventContext& context) {
  Event* const event = locked.add(EventType::kArgument, tensor, context, stream_);
  if (event == nullptr) {
    thread_.counters().count_skipped(Skip::kDevice);
    return nullptr;
  }
  if (event->previous == 0) {
    event->previous = last;
    locked.journal().set_last_event(tensor, event->number);
  } else {
    locked.journal().add_scanned_part(tensor, *event);
  }
  fill_bound(locked, *event, tensor, {});
  add(locked, *event, tensor, /*may_wait=*/false);
  return event;
}

void StreamScans::launch() {
  if (!scans_.is_empty() || devices().has_slots_to_clear()) devices().launch(scans_, stream_);
}

void StreamScans::finish() {
  launch();
  if (has_filled_batch_) devices().launch_full_batches();
}

}  // namespace torchnan
