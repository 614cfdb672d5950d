#include "device/session_number.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "detection/session.h"
#include "process/fork_safe_mutex.h"

namespace torchnan {
namespace {

using Reference = std::weak_ptr<DetectionSession>;

bool are_same(const Reference& a, const Reference& b) { return !a.owner_before(b) && !b.owner_before(a); }

struct Numbered {
  ForkSafeMutex mutex;
  std::map<uint64_t, Reference> sessions;  // the sessions that had not ended when the last one was added
  uint64_t newest = 0;
};
Numbered& numbered = *new Numbered;  // never destroyed: threads may outlive static destructors

uint64_t number_of(const Reference& session) {
  const std::lock_guard lock(numbered.mutex);
  std::erase_if(numbered.sessions, [](const auto& entry) { return entry.second.expired(); });
  const auto known = std::find_if(numbered.sessions.begin(), numbered.sessions.end(),
                                  [&](const auto& entry) { return are_same(entry.second, session); });
  if (known != numbered.sessions.end()) return known->first;
  numbered.sessions.emplace(numbered.newest + 1, session);
  return ++numbered.newest;
}

}  // namespace

SessionNumber::SessionNumber(DetectionSession& session) {
  struct Last {
    const DetectionSession* session = nullptr;
    Reference alive;  // another session may be created at its address
    uint64_t number = 0;
  };
  thread_local Last last;
  if (last.session != &session || last.alive.expired()) {
    Reference alive = session.weak_from_this();
    const uint64_t number = number_of(alive);
    last = {&session, std::move(alive), number};
  }
  number_ = last.number;
}

std::shared_ptr<DetectionSession> SessionNumber::lock() const {
  const std::lock_guard lock(numbered.mutex);
  const auto known = numbered.sessions.find(number_);
  return known == numbered.sessions.end() ? nullptr : known->second.lock();
}

}  // namespace torchnan
