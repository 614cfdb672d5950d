// Marks a compiled region that made a non-finite value on a device.
#pragma once

#include <atomic>
#include <cstdint>

#include <torchnan/export.h>

#include "device/session_number.h"

namespace torchnan {

// The next call of a marked region is held: it holds its inputs, waits for its results, and is replayed if they are
// not finite. A mark holds in the session that set it. All functions may be called on any thread.
class TORCHNAN_API RegionMark {
 public:
  static constexpr int64_t kMaxHeld = 32;  // calls of a region in a session: a region may return a mask every time

  // Returns false if no more calls may be held in this session.
  bool set(DetectionSession& session);

  // Removes the mark. Returns whether it was set in this session.
  bool take(DetectionSession& session);

 private:
  std::atomic<SessionNumber> marked_in_{};
  std::atomic<SessionNumber> counted_in_{};
  std::atomic<int64_t> held_{0};
};

}  // namespace torchnan
