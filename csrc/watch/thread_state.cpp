#include "watch/thread_state.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "process/fork.h"
#include "watch/contain.h"

namespace torchnan {
namespace {

// The scopes that are open anywhere, oldest first.
struct OpenScopes {
  Mutex mutex;
  std::vector<std::shared_ptr<Watch>> scopes;
  std::atomic<uint64_t> generation{1};  // changes with every entry and exit
  std::atomic<int64_t> count{0};
};

OpenScopes& open = *new OpenScopes;  // never destroyed: threads may outlive static destructors

bool remove_last(std::vector<std::shared_ptr<Watch>>& scopes, const std::shared_ptr<Watch>& watch) {
  const auto found = std::find(scopes.rbegin(), scopes.rend(), watch);
  if (found == scopes.rend()) return false;
  scopes.erase(std::next(found).base());
  return true;
}

uint64_t this_thread_id() { return static_cast<uint64_t>(syscall(SYS_gettid)); }

void close_scope(const std::shared_ptr<Watch>& watch) {
  const std::lock_guard lock(open.mutex);
  if (!remove_last(open.scopes, watch)) return;
  ++open.generation;
  --open.count;
}

const InChild remain_alone(&ThreadState::remain_alone);

}  // namespace

int64_t open_scopes() { return open.count; }

ThreadState::ThreadState() : id_(this_thread_id()) {}

// A thread that ends inside a scope.
ThreadState::~ThreadState() {
  for (const auto& watch : scopes_) close_scope(watch);
}

ThreadState& ThreadState::here() {
  thread_local ThreadState state;
  return state;
}

Watch* ThreadState::watch() {
  if (!scopes_.empty()) return current_->is_open() ? current_ : nullptr;
  const uint64_t generation = open.generation.load(std::memory_order_acquire);
  if (adopted_at_ == generation) return current_;
  std::shared_ptr<Watch> next;  // then the one before, which may end with this: not under the lock
  {
    const std::lock_guard lock(open.mutex);
    if (!open.scopes.empty()) next = open.scopes.back();
  }
  adopted_.swap(next);
  if (adopted_ == nullptr) {
    settle();
  } else if (!contain(*adopted_, "taking a thread in", [this] { settle(); })) {
    return nullptr;  // the next operation tries again
  }
  adopted_at_ = generation;
  return current_;
}

std::shared_ptr<Watch> ThreadState::shared_watch() {
  if (watch() == nullptr) return nullptr;
  return scopes_.empty() ? adopted_ : scopes_.back();
}

void ThreadState::close(const Watch& watch) {
  const auto is_its = [&](const auto& scope) { return scope.get() == &watch; };
  const std::lock_guard lock(open.mutex);
  open.count -= static_cast<int64_t>(std::erase_if(open.scopes, is_its));  // the caller has the watch, too
  ++open.generation;
}

void ThreadState::drop_closed() {
  if (std::erase_if(scopes_, [](const auto& scope) { return !scope->is_open(); }) > 0) settle();
}

void ThreadState::remain_alone() {
  ThreadState& mine = here();
  mine.id_ = this_thread_id();
  const std::lock_guard lock(open.mutex);
  open.scopes = mine.scopes_;  // no watch ends here: the stacks of the other threads, which nobody unwinds, hold theirs
  open.count = static_cast<int64_t>(open.scopes.size());
  ++open.generation;
}

void ThreadState::settle() {
  Watch* const next = scopes_.empty() ? adopted_.get() : scopes_.back().get();
  if (next == current_) return;
  current_ = nullptr;
  counters_ = next == nullptr ? nullptr : &next->counters_of(id_);
  current_ = next;
}

void ThreadState::enter(std::shared_ptr<Watch> watch) {
  scopes_.reserve(scopes_.size() + 1);  // what can fail comes first, and leaves everything as it was
  watch->counters_of(id_);
  watch->open();
  {
    const std::lock_guard lock(open.mutex);
    open.scopes.push_back(watch);
    ++open.generation;
    ++open.count;
  }
  scopes_.push_back(std::move(watch));
  settle();
}

void ThreadState::leave(const std::shared_ptr<Watch>& watch) {
  if (!remove_last(scopes_, watch)) return;
  adopted_.reset();
  adopted_at_ = 0;
  settle();
  if (std::find(scopes_.begin(), scopes_.end(), watch) == scopes_.end()) watch->thread_has_left(id_);
  close_scope(watch);
}

}  // namespace torchnan
