#include "device/session_number.h"

#include <map>
#include <mutex>

#include "base/fork_safe_mutex.h"

namespace torchnan {
namespace {

struct Numbered {
  ForkSafeMutex mutex;
  // the sessions that had not ended when the last one was added
  std::map<uint64_t, std::weak_ptr<DetectionSession>> sessions;
  uint64_t newest = 0;
};
Numbered& numbered = *new Numbered;  // never destroyed: threads may outlive static destructors

}  // namespace

void SessionNumber::register_session(DetectionSession& session) {
  const std::lock_guard lock(numbered.mutex);
  if (session.event_number != 0) return;  // another thread was first
  std::erase_if(numbered.sessions, [](const auto& entry) { return entry.second.expired(); });
  numbered.sessions.emplace(numbered.newest + 1, session.weak_from_this());
  session.event_number = ++numbered.newest;
}

std::shared_ptr<DetectionSession> SessionNumber::lock() const {
  const std::lock_guard lock(numbered.mutex);
  const auto known = numbered.sessions.find(number_);
  return known == numbered.sessions.end() ? nullptr : known->second.lock();
}

}  // namespace torchnan
