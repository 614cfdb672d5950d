// Locks, and what becomes of them when the process forks.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#include <torchnan/export.h>

namespace torchnan {

// fork() copies the memory of all threads, and one of the threads. A lock that another thread holds at that moment
// stays locked in the child, for ever, over data that may be half written. So every lock in torchnan is one of these:
// before a fork the thread that forks takes them all, and afterwards both sides give them back.
//
// It waits for them, and may have the GIL meanwhile. So whoever holds one waits for nothing but a lock of a later rank:
// not for the GIL, not for a file, not for a callback; and makes and destroys no ForkSafeMutex, hence no
// DetectionSession.
//
// The first call of a function with a static in it takes a lock too, the compiler's own. What is static in torchnan is
// made when the library is loaded.
class TORCHNAN_API ForkSafeMutex {
 public:
  // In the order in which they may be held together. Of one rank, one at a time.
  enum Rank {
    kSink,  // held while a sink writes, for as long as that takes: no fork waits for it, and it is free in the child
    kInstallation,
    kPlans,
    kRules,
    kDevices,
    kInnermost,
    kRanks,
  };

  explicit ForkSafeMutex(Rank rank = kInnermost);
  ~ForkSafeMutex();
  ForkSafeMutex(const ForkSafeMutex&) = delete;
  ForkSafeMutex& operator=(const ForkSafeMutex&) = delete;

  void lock() {
    mutex_.lock();
    holder_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  void unlock() {
    holder_.store({}, std::memory_order_relaxed);
    mutex_.unlock();
  }

 private:
  friend class Fork;
  void reset_in_child();

  std::mutex mutex_;
  std::atomic<std::thread::id> holder_;
  const Rank rank_;
  ForkSafeMutex* previous_ = nullptr;  // among those of its rank
  ForkSafeMutex* next_ = nullptr;
};

// What else has to be put right in a child: runs there in its only thread, when the locks have been given back. One
// static object for each.
class TORCHNAN_API AtForkChild {
 public:
  explicit AtForkChild(void (*on_child)());

 private:
  friend class Fork;
  void (*const on_child_)();
  AtForkChild* const next_;
};

}  // namespace torchnan
