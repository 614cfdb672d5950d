#include "device/region_mark.h"

namespace torchnan {

bool RegionMark::set(DetectionSession& session) {
  const SessionNumber number(session);
  if (counted_in_.exchange(number) != number) held_ = 0;
  if (held_ >= kMaxHeld) return false;
  marked_in_ = number;
  return true;
}

bool RegionMark::take(DetectionSession& session) {
  SessionNumber number(session);
  if (!marked_in_.compare_exchange_strong(number, SessionNumber())) return false;
  ++held_;
  return true;
}

}  // namespace torchnan
