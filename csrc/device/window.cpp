#include "device/window.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "check/scan/float_format.h"
#include "check/scan/tensor_scan.h"
#include "detection/withdraw_rule.h"
#include "device/devices.h"
#include "check/operators/op_plan.h"
#include "detection/thread_state.h"
#include "base/format.h"

namespace torchnan {

void DeviceScans::read() {
  ThreadState::current().count(&Counters::device_waits);
  slots.resize(cuda::kSlots);
  is_lost = !devices().read(*state, 0, cuda::kSlots, slots.data());
  alarm = state->scanner.alarm();
}

void DeviceScans::reset(bool has_captured) const {
  if (alarm == cuda::kNoAlarm) return;
  ThreadState::current().count(&Counters::device_alarms);
  if (has_captured) {
    state->scanner.clear(Journal::kRotatingSlots, Journal::kCaptured, state->scanner.current_stream().handle);
  }
  state->scanner.reset_alarm(alarm);
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
  const bool is_of_replay = event.number == alarm && alarm >= Journal::kFirstCaptured;  // of an earlier one
  const bool is_alarm = is_of_replay || is_unread_alarm(event);
  if (!is_alarm && largest <= event.max_intended()) return std::nullopt;
  return holds_infinity(event) ? NonfiniteKinds::only_inf() : NonfiniteKinds::only_nan();
}

const DeviceScans* Window::scans_of(const Event& event) const {
  const auto one = std::find_if(found.begin(), found.end(),
                                [&](const DeviceScans& of) { return &of.state->scanner == event.scanner; });
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
  for (DeviceState* state : devices().states()) window.found.push_back({state});
  for (DeviceScans& found : window.found) found.read();
  return window;
}

// A result whose bound was proved from a value that exceeded its own bound.
struct Doubted {
  WeakTensor tensor;
  EventNumber number;
};

// Scans the results that still exist, because nothing is known of them any more. Returns whether there are any.
bool force_scans(const std::vector<Doubted>& results) {
  bool has_scanned = false;
  for (const Doubted& result : results) {
    const at::Tensor tensor = result.tensor.lock();
    if (!tensor.defined()) continue;
    Scanner* const scanner = Scanner::of(tensor.device());
    ScanList scans;
    {
      Devices::Lock locked(devices());
      Event* const event = locked.journal().find(result.number);
      if (event == nullptr || !scans.add(tensor, event->number, event->limit())) continue;
      event->scanner = scanner;
    }
    devices().launch(scans, scanner->current_stream());
    has_scanned = true;
  }
  return has_scanned;
}

// A proved result whose scan found a larger value.
struct Disproved {
  const OpPlan* plan;
  SessionNumber session;
  double bound;
  double found;
};

// Withdraws the rules that gave those bounds. The caller must not hold a lock: it warns.
void withdraw_rules(const std::vector<Disproved>& results) {
  for (const Disproved& result : results) {
    const std::shared_ptr<DetectionSession> session = result.session.lock();
    if (session != nullptr && result.plan->bounds.rule != nullptr)
      withdraw_rule(*session, *result.plan,
                    format_text("a result on a device was proved to be within {:.4g}, and holds {:.4g}", result.bound,
                                result.found));
  }
}

// Forgets the bound of an event if its scan found a larger value. Returns whether it did. `then` is the event in the
// window, `now` the one in the journal.
bool invalidate_if_exceeded(Devices::Lock& locked, const DeviceScans& found, Event& then, Event& now) {
  if (found.largest_word_of(then) <= then.limit()) return false;
  now.bound = {};
  for (size_t i = 0; then.plan->proves_nonnegative_input && i < then.inputs; ++i) {
    if (Event* const input = locked.journal().find(then.input[i].event)) input->bound.nonnegative = false;
  }
  if (!found.exceeds_assumption(then)) return true;
  locked.assumptions().raise(then, decode_magnitude(found.largest_word_of(then), then.tensor.dtype));
  now.assumed = std::numeric_limits<double>::infinity();  // only once: the value is known now
  then.assumed = now.assumed;
  return true;
}

// Returns the bound shown by a scan without an alarm: it covers only the memory that was read.
Bound bound_by_scan(const Event& event) { return event.tensor.covers ? Bound{event.assumed} : Bound{}; }

// After a value exceeded its bound, later proofs are void. Returns true if that changes the window.
bool invalidate_bounds(Window& window) {
  std::vector<Doubted> doubted;
  std::vector<Disproved> disproved;
  bool is_void = false;
  {
    Devices::Lock locked(devices());
    for (Event& then : window.events) {
      Event* const now = locked.journal().find(then.number);
      if (now == nullptr) continue;
      if (const DeviceScans* const found = window.scans_of(then)) {
        if (found->is_lost) continue;
        if (is_void) now->bound = bound_by_scan(*now);
        const double bound = then.assumed;
        const bool is_exceeded = invalidate_if_exceeded(locked, *found, then, *now);
        // This proof was made before any was void, so its premises hold.
        if (is_exceeded && then.is_rescanned && !is_void) {
          const double most = decode_magnitude(found->largest_word_of(then), then.tensor.dtype);
          disproved.push_back({then.plan, then.session, bound, most});
        }
        is_void |= is_exceeded;
      } else if (is_void) {
        now->bound = {};
        if (now->type == EventType::kResult) doubted.push_back({locked.journal().find_tensor(*now), now->number});
      }
    }
  }
  if (is_void) devices().count_voided();
  withdraw_rules(disproved);
  return force_scans(doubted);
}

}  // namespace

Window read_window(EventNumber first) {
  Window window = take_window(first);
  return invalidate_bounds(window) ? take_window(first) : window;
}

}  // namespace torchnan
