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
// The forking thread waits for the locks, and may hold the GIL meanwhile. Therefore a thread that holds a lock may wait
// only for a lock of a later rank: not for the GIL, a file or a callback. It must not create or destroy a
// ForkSafeMutex, and hence no DetectionSession.
//
// The first call of a function with a static variable takes a lock of the compiler. Therefore static objects of
// torchnan are created when the library is loaded.
class TORCHNAN_API ForkSafeMutex {
 public:
  // The order in which a thread may hold several locks; at most one of each rank.
  enum Rank {
    // held while a sink writes or while waiting for a device: a fork does not wait for it, and it is unlocked in the
    // child
    kSlow,
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

  // Without a call while no other thread wants it: a call on a device locks twice.
  void lock() {
    int free = kFree;
    if (!state_.compare_exchange_strong(free, kLocked, std::memory_order_acquire)) [[unlikely]]
      wait_and_lock();
    holder_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  }
  void unlock() {
    holder_.store({}, std::memory_order_relaxed);
    if (state_.exchange(kFree, std::memory_order_release) == kAwaited) [[unlikely]]
      state_.notify_one();
  }

 private:
  friend class Fork;
  static constexpr int kFree = 0, kLocked = 1, kAwaited = 2;  // awaited: locked, and others may wait

  void wait_and_lock();
  void reset_in_child();

  std::atomic<int> state_{kFree};
  std::atomic<std::thread::id> holder_;
  const Rank rank_;
  ForkSafeMutex* previous_ = nullptr;  // the previous one of the same rank
  ForkSafeMutex* next_ = nullptr;
};

// Registers a function to run in a child process, in its only thread, after the locks were unlocked. Use it only for
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
