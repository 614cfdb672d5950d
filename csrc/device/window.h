// The events of devices since the journal was last read, and what the scans of them have found.
#pragma once

#include <optional>
#include <vector>

#include <c10/util/SmallVector.h>

#include "scan/nonfinite_kinds.h"
#include "device/devices.h"

namespace torchnan {

// The results of the scans of one device.
struct DeviceScans {
  Lane* lane;
  std::vector<cuda::Slot> slots{};
  uint64_t alarm = cuda::kNoAlarm;

  // Waits until every stream that has scans has come here.
  void read();

  // Resets the alarm and the slots of captured events, for what is replayed and for what comes next.
  void reset(bool has_captured) const;

  uint64_t largest_word_of(const Event& event) const { return slots[event.number % cuda::kSlots].max_magnitude; }

  // Whether the result of an event is finite and larger than was assumed.
  bool exceeds_assumption(const Event& event) const;

  bool holds_infinity(const Event& event) const;

  // Returns the kinds of an event's result; nothing if all that it has written is intended.
  std::optional<NonfiniteKinds> kinds_of(const Event& event) const;
};

struct Window {
  std::vector<Event> events;    // in the order of the host
  std::vector<Event> captured;  // once more with every replay
  std::vector<DeviceScans> found;
  EventNumber end = 0;

  // Returns the scans of the device of an event; null if the event was not scanned.
  const DeviceScans* scans_of(const Event& event) const;
};

// Reads the journal from event `first` on, if it is not forgotten. Waits for the devices. Where a result was larger
// than it was assumed to be, what had been proved since is void: what is left of it has been scanned, and nothing is
// known of the rest.
Window read_window(EventNumber first);

}  // namespace torchnan
