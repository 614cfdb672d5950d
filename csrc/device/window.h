// The device events since the journal was last read, with the results of their scans.
#pragma once

#include <optional>
#include <vector>

#include <c10/util/SmallVector.h>

#include "check/scan/nonfinite_kinds.h"
#include "device/devices.h"

namespace torchnan {

// The results of the scans of one device.
struct DeviceScans {
  DeviceState* state;
  std::vector<cuda::Slot> slots{};
  uint64_t alarm = cuda::kNoAlarm;
  bool is_lost = false;  // the device: only its alarm is known

  // Waits until every stream with scans has reached this point.
  void read();

  // Resets the alarm and the slots of captured events, for the next replay.
  void reset(bool has_captured) const;

  uint64_t largest_word_of(const Event& event) const { return slots[event.number % cuda::kSlots].max_magnitude; }
  bool is_unread_alarm(const Event& event) const { return is_lost && event.number == alarm; }

  // Whether the result of an event is finite and exceeds its assumed bound.
  bool exceeds_assumption(const Event& event) const;

  bool holds_infinity(const Event& event) const;

  // Returns the kinds of an event's result; nothing if all its values are intentional.
  std::optional<NonfiniteKinds> kinds_of(const Event& event) const;
};

struct Window {
  std::vector<Event> events;    // in the order of the host
  std::vector<Event> captured;  // occur again with every replay
  std::vector<DeviceScans> found;
  EventNumber end = 0;

  // Returns the scans of the device of an event; null if the event was not scanned.
  const DeviceScans* scans_of(const Event& event) const;
};

// Reads the journal from event `first` on, if it is not forgotten. Waits for the devices. If a result exceeded its
// assumed bound, proofs made since then are void: results that still exist are scanned, and nothing is known of the
// others.
Window read_window(EventNumber first);

}  // namespace torchnan
