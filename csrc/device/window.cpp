#include "device/window.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "scan/float_format.h"
#include "scan/tensor_scan.h"
#include "device/devices.h"
#include "detection/thread_state.h"

namespace torchnan {

void DeviceScans::read() {
  ThreadState::current().count(&Counters::device_waits);
  slots.resize(cuda::kSlots);
  devices().read(*lane, 0, cuda::kSlots, slots.data());
  alarm = lane->scanner.alarm();
}

void DeviceScans::reset(bool has_captured) const {
  if (alarm == cuda::kNoAlarm) return;
  ThreadState::current().count(&Counters::device_alarms);
  if (has_captured) {
    lane->scanner.clear(Journal::kRotatingSlots, Journal::kCaptured, lane->scanner.current_stream().handle);
  }
  lane->scanner.reset_alarm(alarm);
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
  return holds_infinity(event) ? NonfiniteKinds::only_inf() : NonfiniteKinds::only_nan();
}

const DeviceScans* Window::scans_of(const Event& event) const {
  const auto one = std::find_if(found.begin(), found.end(),
                                [&](const DeviceScans& of) { return &of.lane->scanner == event.scanner; });
  return one == found.end() ? nullptr : &*one;
}

namespace {

Window take_window(EventNumber first) {
  devices().launch_all();
  Window window;
  {
    Devices::Lock locked(devices());
    window.end = locked.journal().next();
    for (EventNumber n = std::max(first, locked.journal().oldest()); n < window.end; ++n) {
      if (const Event* event = locked.journal().find(n)) window.events.push_back(*event);
    }
    window.captured = locked.journal().captured();
  }
  for (Lane* lane : devices().lanes()) window.found.push_back({lane});
  for (DeviceScans& found : window.found) found.read();
  return window;
}

// Nothing is known of the results of these events any more. Scans those that are still there. Returns whether there are
// any.
bool force_scans(const std::vector<WeakTensor>& doubted, const std::vector<EventNumber>& numbers) {
  bool has_scanned = false;
  for (size_t i = 0; i < doubted.size(); ++i) {
    const at::Tensor tensor = doubted[i].lock();
    if (!tensor.defined()) continue;
    Scanner* const scanner = Scanner::of(tensor.device());
    ScanList scans;
    {
      Devices::Lock locked(devices());
      Event* const event = locked.journal().find(numbers[i]);
      if (event == nullptr || !scans.add(tensor, event->number, event->limit())) continue;
      event->scanner = scanner;
    }
    devices().launch(scans, scanner->current_stream());
    has_scanned = true;
  }
  return has_scanned;
}

// What comes after a value that was not within its bound has been proved of something else. True if that has changed
// what the window shows.
bool invalidate_bounds(Window& window) {
  std::vector<WeakTensor> doubted;
  std::vector<EventNumber> numbers;
  bool is_void = false;
  {
    Devices::Lock locked(devices());
    for (Event& then : window.events) {
      Event* event = locked.journal().find(then.number);
      if (event == nullptr) continue;
      const DeviceScans* found = window.scans_of(then);
      if (found == nullptr) {
        if (!is_void) continue;
        event->bound = {};
        if (event->type != EventType::kResult) continue;
        doubted.push_back(locked.journal().find_tensor(*event));
        numbers.push_back(event->number);
        continue;
      }
      if (found->largest_word_of(then) <= then.limit()) continue;
      is_void = true;
      event->bound = {};
      if (!found->exceeds_assumption(then)) continue;
      locked.assumptions().raise(then, decode_magnitude(found->largest_word_of(then), then.tensor.dtype));
      event->assumed = std::numeric_limits<double>::infinity();  // this once: it is known now
      then.assumed = event->assumed;
    }
  }
  return force_scans(doubted, numbers);
}

}  // namespace

Window read_window(EventNumber first) {
  Window window = take_window(first);
  return invalidate_bounds(window) ? take_window(first) : window;
}

}  // namespace torchnan
