// Locks that survive a fork of the process.
#pragma once

#include <atomic>
#include <mutex>
#include <thread>

#include <torchnan/export.h>

namespace torchnan {

// fork() copies the memory of all threads, but only one of the threads. A lock that another thread holds at that moment
// stays locked in the child forever, over data that may be half written. So every lock in torchnan is a ForkSafeMutex:
// before a fork, the forking thread locks all of them, and afterwards both processes unlock them.
//
// It waits for them, and may have the GIL meanwhile. So whoever holds one waits for nothing but a lock of a later rank:
// not for the GIL, not for a file, not for a callback; and makes and destroys no ForkSafeMutex, hence no
// DetectionSession.
//
// The first call of a function with a static variable takes a lock too, the compiler's own. So static objects of
// torchnan are created when the library is loaded.
class TORCHNAN_API ForkSafeMutex {
 public:
  // The order in which locks may be held together; only one of each rank.
  enum Rank {
    kSlow,  // held while a sink writes or a device is waited for: no fork waits for it, and it is unlocked in the child
    kInstallation,
    kPlans,
    kRules,
    kDevices,
    kScopes,
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
  ForkSafeMutex* previous_ = nullptr;  // of the same rank
  ForkSafeMutex* next_ = nullptr;
};

// Registers a function to run in a child process, in its only thread, after the locks were unlocked. To be used for
// static objects.
class TORCHNAN_API AtForkChild {
 public:
  explicit AtForkChild(void (*on_child)());

 private:
  friend class Fork;
  void (*const on_child_)();
  AtForkChild* const next_;
};

}  // namespace torchnan
