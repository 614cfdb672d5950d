// Identifies a session in events.
#pragma once

#include <cstdint>
#include <memory>

#include <torchnan/export.h>

#include "detection/session.h"

namespace torchnan {

// Works like a weak reference, but is copied and dropped without a locked instruction: every event holds one.
class TORCHNAN_API SessionNumber {
 public:
  SessionNumber() = default;  // identifies no session
  explicit SessionNumber(DetectionSession& session) {
    if (session.event_number == 0) register_session(session);
    number_ = session.event_number;
  }

  // Returns the session; null if it has ended.
  std::shared_ptr<DetectionSession> lock() const;

  bool operator==(const SessionNumber&) const = default;

 private:
  static void register_session(DetectionSession& session);

  uint64_t number_ = 0;
};

}  // namespace torchnan
