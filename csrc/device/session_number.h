// What stands for a session in events.
#pragma once

#include <cstdint>
#include <memory>

namespace torchnan {

class DetectionSession;

// As a weak reference, but copied and dropped without a locked instruction: there is one in every event.
class SessionNumber {
 public:
  SessionNumber() = default;  // of no session
  explicit SessionNumber(DetectionSession& session);

  // Returns the session; null if it is gone.
  std::shared_ptr<DetectionSession> lock() const;

 private:
  uint64_t number_ = 0;
};

}  // namespace torchnan
