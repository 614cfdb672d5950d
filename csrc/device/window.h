// What devices have done since the last time somebody looked, and what the scans of it have found.
#pragma once

#include <optional>
#include <vector>

#include <c10/util/SmallVector.h>

#include "scan/nonfinite_kinds.h"
#include "device/event.h"
#include "device/scanner.h"

namespace torchnan {

// What the scans of one device have found.
struct Found {
  Scanner* scanner;
  c10::SmallVector<void*, 4> streams;
  std::vector<cuda::Slot> slots;
  uint64_t alarm = cuda::kNoAlarm;

  // Waits until every stream that has scans has come here.
  void read();

  // For what is replayed, and for what comes next.
  void reset(bool has_captured) const;

  uint64_t most_of(const Event& event) const { return slots[event.number % cuda::kSlots].max_magnitude; }

  // It is finite, and larger than was assumed.
  bool exceeds_assumption(const Event& event) const;

  bool holds_infinity(const Event& event) const;

  // Nothing, if all that the event has written is meant to be there.
  std::optional<NonfiniteKinds> kinds_of(const Event& event) const;
};

struct Window {
  std::vector<Event> events;    // in the order of the host
  std::vector<Event> captured;  // once more with every replay
  std::vector<Found> found;
  EventNumber end = 0;

  // Null if nobody has looked at it.
  const Found* found_of(const Event& event) const;
};

// From event `first` on, if it is not forgotten. Waits for the devices. Where a result was larger than it was assumed
// to be, what had been proved since is void: what is left of it has been scanned, and nothing is known of the rest.
Window read_window(EventNumber first);

}  // namespace torchnan
