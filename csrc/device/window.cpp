#include "device/window.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "scan/float_format.h"
#include "scan/tensor_scan.h"
#include "device/devices.h"

namespace torchnan {

void Found::read() {
  slots.resize(cuda::kSlots);
  for (void* stream : streams) scanner->read(0, cuda::kSlots, slots.data(), stream);
  alarm = scanner->alarm();
}

void Found::reset(bool has_captured) const {
  if (alarm == cuda::kNoAlarm) return;
  scanner->reset_alarm(streams.back());
  if (has_captured) scanner->clear(Journal::kRotatingSlots, Journal::kCaptured, streams.back());
}

bool Found::exceeds_assumption(const Event& event) const {
  const uint64_t max_magnitude = most_of(event);
  return max_magnitude > event.limit() && max_magnitude <= event.max_intended();
}

bool Found::holds_infinity(const Event& event) const {
  const FloatFormat format = *float_format(event.tensor.dtype);
  return most_of(event) >= format.infinity && most_of(event) < format.first_nan;
}

std::optional<NonfiniteKinds> Found::kinds_of(const Event& event) const {
  const uint64_t max_magnitude = most_of(event);
  const bool is_alarm = event.number == alarm && alarm >= Journal::kFirstCaptured;  // of a replay before the last
  if (!is_alarm && max_magnitude <= event.max_intended()) return std::nullopt;
  return holds_infinity(event) ? NonfiniteKinds::of_inf() : NonfiniteKinds::of_nan();
}

const Found* Window::found_of(const Event& event) const {
  const auto one =
      std::find_if(found.begin(), found.end(), [&](const Found& of) { return of.scanner == event.scanner; });
  return one == found.end() ? nullptr : &*one;
}

namespace {

Window take_window(EventNumber first) {
  Window window;
  {
    Devices::Turn turn(devices());
    turn.launch_all();
    window.end = turn.journal().next();
    for (EventNumber n = std::max(first, turn.journal().oldest()); n < window.end; ++n) {
      if (const Event* event = turn.journal().find(n)) window.events.push_back(*event);
    }
    window.captured = turn.journal().captured();
    for (const auto& lane : devices().lanes()) window.found.push_back({&lane->scanner, lane->streams, {}});
  }
  for (Found& found : window.found) found.read();
  return window;
}

// Nothing is known of it any more. Scanned, if it is still there.
bool force_scan(Devices::Turn& turn, Event& event) {
  event.bound = {};
  const at::Tensor tensor = event.what == Event::What::kResult ? turn.journal().tensor_of(event) : at::Tensor();
  if (!tensor.defined()) return false;
  turn.scan(event, tensor);
  return true;
}

// What comes after a value that was not within its bound has been proved of something else. True if that has changed
// what the window shows.
bool invalidate_bounds(const Window& window) {
  Devices::Turn turn(devices());
  bool is_void = false;
  bool has_changed = false;
  for (const Event& then : window.events) {
    Event* event = turn.journal().find(then.number);
    if (event == nullptr) continue;
    const Found* found = window.found_of(then);
    if (found == nullptr) {
      if (is_void && force_scan(turn, *event)) has_changed = true;
      continue;
    }
    if (found->most_of(then) <= then.limit()) continue;
    is_void = true;
    event->bound = {};
    if (!found->exceeds_assumption(then)) continue;
    turn.assumptions().raise(then, decode_magnitude(found->most_of(then), then.tensor.dtype));
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
