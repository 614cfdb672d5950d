#include "detection/thread_state.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "base/fork_safe_mutex.h"
#include "detection/error_containment.h"

namespace torchnan {
namespace {

// All open scopes of the process, oldest first.
struct OpenScopes {
  ForkSafeMutex mutex{ForkSafeMutex::kScopes};
  std::vector<std::shared_ptr<DetectionSession>> scopes;
  std::atomic<uint64_t> generation{1};  // changes with every entry and exit
  std::atomic<int64_t> count{0};
  std::shared_ptr<DetectionSession> closed;  // the innermost scope of every suspended thread; made when there is one
};

OpenScopes& open = *new OpenScopes;  // never destroyed: threads may outlive static destructors

bool remove_last(std::vector<std::shared_ptr<DetectionSession>>& scopes,
                 const std::shared_ptr<DetectionSession>& session) {
  const auto found = std::find(scopes.rbegin(), scopes.rend(), session);
  if (found == scopes.rend()) return false;
  scopes.erase(std::next(found).base());
  return true;
}

// Returns the innermost scope of a suspended thread.
std::shared_ptr<DetectionSession> closed_session() {
  {
    const std::lock_guard lock(open.mutex);
    if (open.closed != nullptr) return open.closed;
  }
  auto made = std::make_shared<DetectionSession>(Options{});
  made->close();
  const std::lock_guard lock(open.mutex);
  if (open.closed == nullptr) open.closed = std::move(made);
  return open.closed;
}

uint64_t this_thread_id() { return static_cast<uint64_t>(syscall(SYS_gettid)); }

void close_scope(const std::shared_ptr<DetectionSession>& session) {
  const std::lock_guard lock(open.mutex);
  if (!remove_last(open.scopes, session)) return;
  ++open.generation;
  --open.count;
}

const AtForkChild reset_after_fork(&ThreadState::reset_after_fork);

}  // namespace

int64_t open_scopes() { return open.count; }

void call_unless_open(c10::function_ref<void()> forget) {
  const std::lock_guard lock(open.mutex);
  if (open.scopes.empty()) forget();
}

ThreadState::ThreadState() : id_(this_thread_id()) {}

// For a thread that ends inside a scope.
ThreadState::~ThreadState() {
  for (const auto& session : scopes_) close_scope(session);
  for (const Suspension& suspension : suspended_) {
    for (const auto& session : suspension.scopes) close_scope(session);
  }
}

constinit thread_local ThreadState* ThreadState::of_this_thread = nullptr;

ThreadState& ThreadState::make_current() {
  thread_local ThreadState state;
  of_this_thread = &state;
  return state;
}

// Of a thread that entered none.
DetectionSession* ThreadState::inherited_session() {
  const uint64_t generation = open.generation.load(std::memory_order_acquire);
  if (inherited_at_ == generation) return current_;
  std::shared_ptr<DetectionSession> next;  // then the previous one, which may end with this: not under the lock
  {
    const std::lock_guard lock(open.mutex);
    if (!open.scopes.empty()) next = open.scopes.back();
  }
  inherited_.swap(next);
  if (inherited_ == nullptr) {
    refresh_current();
  } else if (!run_contained(*inherited_, "adding a thread", [this] { refresh_current(); })) {
    return nullptr;  // the next operation tries again
  }
  inherited_at_ = generation;
  return current_;
}

std::shared_ptr<DetectionSession> ThreadState::shared_session() {
  if (session() == nullptr) return nullptr;
  return scopes_.empty() ? inherited_ : scopes_.back();
}

void ThreadState::close(const DetectionSession& session) {
  const auto is_its = [&](const auto& scope) { return scope.get() == &session; };
  const std::lock_guard lock(open.mutex);
  open.count -= static_cast<int64_t>(std::erase_if(open.scopes, is_its));  // the caller holds the session, too
  ++open.generation;
}

void ThreadState::suspend() {
  if (!suspended_.empty() && scopes_.size() == 1) {
    ++suspended_.back().calls;
    return;
  }
  std::vector<std::shared_ptr<DetectionSession>> closed{closed_session()};  // what can fail comes first
  closed.front()->counters_of(id_);
  suspended_.emplace_back();
  suspended_.back().scopes.swap(scopes_);
  scopes_.swap(closed);
  refresh_current();
}

void ThreadState::resume() {
  if (suspended_.empty() || --suspended_.back().calls > 0) return;
  const std::vector<std::shared_ptr<DetectionSession>>& before = suspended_.back().scopes;
  scopes_.erase(scopes_.begin());
  scopes_.insert(scopes_.begin(), before.begin(), before.end());
  suspended_.pop_back();
  inherited_at_ = 0;
  refresh_current();
}

void ThreadState::remove_closed_sessions() {
  if (!suspended_.empty()) return;
  if (std::erase_if(scopes_, [](const auto& scope) { return !scope->is_open(); }) > 0) refresh_current();
}

void ThreadState::reset_after_fork() {
  ThreadState& mine = current();
  mine.id_ = this_thread_id();
  const std::lock_guard lock(open.mutex);
  // No session ends here: the stacks of the other threads, which are never unwound in the child, hold theirs.
  open.scopes = mine.suspended_.empty() ? mine.scopes_ : mine.suspended_.front().scopes;
  open.count = static_cast<int64_t>(open.scopes.size());
  ++open.generation;
}

void ThreadState::refresh_current() {
  DetectionSession* const next = scopes_.empty() ? inherited_.get() : scopes_.back().get();
  if (next == current_) return;
  current_ = nullptr;
  counters_ = next == nullptr ? nullptr : &next->counters_of(id_);
  current_ = next;
}

void ThreadState::enter(std::shared_ptr<DetectionSession> session) {
  scopes_.reserve(scopes_.size() + 1);  // what can fail comes first, and leaves everything as it was
  session->counters_of(id_);
  session->open();
  {
    const std::lock_guard lock(open.mutex);
    open.scopes.push_back(session);
    ++open.generation;
    ++open.count;
  }
  scopes_.push_back(std::move(session));
  refresh_current();
}

void ThreadState::leave(const std::shared_ptr<DetectionSession>& session) {
  if (!remove_last(scopes_, session)) return;
  awaited_versions.settle();
  inherited_.reset();
  inherited_at_ = 0;
  refresh_current();
  const auto is_in = [&](const auto& scopes) {
    return std::find(scopes.begin(), scopes.end(), session) != scopes.end();
  };
  const auto is_in_suspension = [&](const Suspension& one) { return is_in(one.scopes); };
  const bool is_inside = is_in(scopes_) || std::any_of(suspended_.begin(), suspended_.end(), is_in_suspension);
  if (!is_inside) session->on_thread_exit(id_);
  close_scope(session);
}

}  // namespace torchnan
