#include "base/fork_safe_mutex.h"

#include "base/held_locks.h"

#include <pthread.h>

#include <array>

namespace torchnan {
namespace {

// Constant-initialized: static objects of other files may be created earlier.
constinit std::mutex all_mutexes;
constinit std::array<ForkSafeMutex*, ForkSafeMutex::kRanks> first_of_rank{};
constinit AtForkChild* first_in_child = nullptr;

}  // namespace

ForkSafeMutex::ForkSafeMutex(Rank rank) : rank_(rank) {
  const std::lock_guard lock(all_mutexes);
  next_ = first_of_rank[rank];
  if (next_ != nullptr) next_->previous_ = this;
  first_of_rank[rank] = this;
}

ForkSafeMutex::~ForkSafeMutex() {
  const std::lock_guard lock(all_mutexes);
  if (next_ != nullptr) next_->previous_ = previous_;
  (previous_ != nullptr ? previous_->next_ : first_of_rank[rank_]) = next_;
}

// A thread that has waited cannot know whether others still do.
void ForkSafeMutex::wait_and_lock() {
  while (state_.exchange(kAwaited, std::memory_order_acquire) != kFree)
    state_.wait(kAwaited, std::memory_order_relaxed);
}

// The owner does not exist in the child, unless it is the forking thread, which unlocks the mutex itself.
void ForkSafeMutex::reset_in_child() {
  if (holder_ != std::this_thread::get_id()) state_ = kFree;
}

AtForkChild::AtForkChild(void (*on_child)()) : on_child_(on_child), next_(first_in_child) { first_in_child = this; }

class Fork {
 public:
  static void before() {
    all_mutexes.lock();
    for (int rank = ForkSafeMutex::kSlow + 1; rank < ForkSafeMutex::kRanks; ++rank) {
      for (ForkSafeMutex* one = first_of_rank[rank]; one != nullptr; one = one->next_) one->lock();
    }
  }

  static void after() {
    for (int rank = ForkSafeMutex::kRanks - 1; rank > ForkSafeMutex::kSlow; --rank) {
      for (ForkSafeMutex* one = first_of_rank[rank]; one != nullptr; one = one->next_) one->unlock();
    }
    all_mutexes.unlock();
  }

  static bool is_held_here(const ForkSafeMutex& mutex) { return mutex.holder_ == std::this_thread::get_id(); }

  // A forking thread waits for the locks that this thread may hold, so this thread must not wait for the fork.
  static bool any_is_held_here() {
    const std::unique_lock lock(all_mutexes, std::try_to_lock);
    if (!lock) return false;
    for (const ForkSafeMutex* first : first_of_rank) {
      for (const ForkSafeMutex* one = first; one != nullptr; one = one->next_) {
        if (is_held_here(*one)) return true;
      }
    }
    return false;
  }

  static void in_child() {
    for (ForkSafeMutex* one = first_of_rank[ForkSafeMutex::kSlow]; one != nullptr; one = one->next_)
      one->reset_in_child();
    after();
    for (const AtForkChild* one = first_in_child; one != nullptr; one = one->next_) one->on_child_();
  }
};

bool holds_lock() { return Fork::any_is_held_here(); }

namespace {

[[maybe_unused]] const int is_registered = pthread_atfork(&Fork::before, &Fork::after, &Fork::in_child);

}  // namespace
}  // namespace torchnan
