#include "device/window.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "scan/float_format.h"
#include "scan/tensor_scan.h"
#include "device/devices.h"

namespace torchnan {

void DeviceScans::read() {
  slots.resize(cuda::kSlots);
  for (void* stream : streams) scanner->read(0, cuda::kSlots, slots.data(), stream);
  alarm = scanner->alarm();
}

void DeviceScans::reset(bool has_captured) const {
  if (alarm == cuda::kNoAlarm) return;
  scanner->reset_alarm(streams.back());
  if (has_captured) scanner->clear(Journal::kRotatingSlots, Journal::kCaptured, streams.back());
}

bool DeviceScans::exceeds_assumption(const Event& event) const {
  const uint64_t largest = largest_word_of(event);
  return largest > event.limit() && largest <= event.max_intended();
}

bool DeviceScans::holds_infinity(const Event& event) const {
  const FloatFormat format = *float_format(event.tensor.dtype);
  return largest_word_of(event) >= format.infinity && largest_word_of(event) < format.first_nan;
}

std::optional<NonfiniteKinds> DeviceScans::kinds_of(const Event& event) const {
  const uint64_t largest = largest_word_of(event);
  const bool is_alarm = event.number == alarm && alarm >= Journal::kFirstCaptured;  // of a replay before the last
  if (!is_alarm && largest <= event.max_intended()) return std::nullopt;
  return holds_infinity(event) ? NonfiniteKinds::of_inf() : NonfiniteKinds::of_nan();
}

const DeviceScans* Window::scans_of(const Event& event) const {
  const auto one =
      std::find_if(found.begin(), found.end(), [&](const DeviceScans& of) { return of.scanner == event.scanner; });
  return one == found.end() ? nullptr : &*one;
}

namespace {

Window take_window(EventNumber first) {
  Window window;
  {
    Devices::Lock locked(devices());
    locked.launch_all();
    window.end = locked.journal().next();
    for (EventNumber n = std::max(first, locked.journal().oldest()); n < window.end; ++n) {
      if (const Event* event = locked.journal().find(n)) window.events.push_back(*event);
    }
    window.captured = locked.journal().captured();
    for (const auto& queue : devices().queues()) window.found.push_back({&queue->scanner, queue->streams, {}});
  }
  for (DeviceScans& found : window.found) found.read();
  return window;
}

// Nothing is known of it any more. Scanned, if it is still there.
bool force_scan(Devices::Lock& locked, Event& event) {
  event.bound = {};
  const at::Tensor tensor = event.type == EventType::kResult ? locked.journal().tensor_of(event) : at::Tensor();
  if (!tensor.defined()) return false;
  locked.scan(event, tensor);
  return true;
}

// What comes after a value that was not within its bound has been proved of something else. True if that has changed
// what the window shows.
bool invalidate_bounds(const Window& window) {
  Devices::Lock locked(devices());
  bool is_void = false;
  bool has_changed = false;
  for (const Event& then : window.events) {
    Event* event = locked.journal().find(then.number);
    if (event == nullptr) continue;
    const DeviceScans* found = window.scans_of(then);
    if (found == nullptr) {
      if (is_void && force_scan(locked, *event)) has_changed = true;
      continue;
    }
    if (found->largest_word_of(then) <= then.limit()) continue;
    is_void = true;
    event->bound = {};
    if (!found->exceeds_assumption(then)) continue;
    locked.assumptions().raise(then, decode_magnitude(found->largest_word_of(then), then.tensor.dtype));
    event->assumed = std::numeric_limits<double>::infinity();  // this once: it is known now
    has_changed = true;
  }
  return has_changed;
}

}  // namespace

Window read_window(EventNumber first) {
  Window window = take_window(first);
  return invalidate_bounds(window) ? take_window(first) : window;
}

}  // namespace torchnan
