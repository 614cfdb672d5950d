// A process can fork while other threads hold any of torchnan's locks; the child finds none of them taken.
#include "base/fork_safe_mutex.h"

#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torchnan/torchnan.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "check/bounds/bound_cache.h"
#include "check/bounds/rules.h"
#include "origin/nonfinite_registry.h"
#include "detection/thread_state.h"

namespace torchnan {
namespace {

constexpr unsigned kDeadline = 60;  // seconds; only a hang reaches it
constexpr auto kStretch = std::chrono::milliseconds(300);

Options logging() {
  Options options;
  options.action = Action::kLog;
  return options;
}

// Forks, and runs `child` there. True if it has returned true in time.
bool in_child(const std::function<bool()>& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(kDeadline);
    try {
      _exit(child() ? 0 : 1);
    } catch (...) {
      _exit(2);
    }
  }
  int status = -1;
  waitpid(pid, &status, 0);
  return status == 0;
}

bool finds_its_own() {
  Detector detector(logging());
  const at::Tensor x = at::ones({4}).requires_grad_();
  (x.exp() * x).sum().backward();
  at::zeros({1}).log().item();
  return detector.findings().size() == 1 && detector.stats().internal_errors == 0;
}

// More threads than cores: many wait, and each is woken.
TEST(ForkSafeMutex, IsHeldByOneThreadAtATime) {
  constexpr int kThreads = 8, kTimes = 20000;
  ForkSafeMutex mutex;
  int inside = 0, counted = 0, found_another = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int time = 0; time < kTimes; ++time) {
        const std::lock_guard lock(mutex);
        found_another += inside++ != 0;
        if (time % 100 == 0) std::this_thread::yield();
        ++counted;
        --inside;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counted, kThreads * kTimes);
  EXPECT_EQ(found_another, 0);
}

// Fails when Fork::before() takes no locks: the child waits forever, or sees half of a change.
TEST(Fork, WaitsForASectionThatHasBegun) {
  for (const ForkSafeMutex::Rank rank :
       {ForkSafeMutex::kInstallation, ForkSafeMutex::kPlans, ForkSafeMutex::kRules, ForkSafeMutex::kInnermost}) {
    ForkSafeMutex mutex(rank);
    int first_half = 0;
    int second_half = 0;
    std::promise<void> is_inside;
    std::thread holder([&] {
      const std::lock_guard lock(mutex);
      first_half = 1;
      is_inside.set_value();
      std::this_thread::sleep_for(kStretch);  // the window that a fork falls into
      second_half = 1;
    });
    is_inside.get_future().wait();
    EXPECT_TRUE(in_child([&] {
      const std::lock_guard lock(mutex);
      return first_half == second_half && finds_its_own();
    })) << "rank "
        << rank;
    holder.join();
  }
}

struct StuckSink final : Sink {
  void emit(const Finding&) override {
    if (getpid() != parent) return;
    is_inside.set_value();
    let_go.get_future().wait();
  }
  const pid_t parent = getpid();
  std::promise<void> is_inside;
  std::promise<void> let_go;
};

// Fails when ForkSafeMutex::reset_in_child() does nothing: the child waits forever.
TEST(Fork, WaitsForNoSink) {
  Detector detector(logging());
  auto sink = std::make_unique<StuckSink>();
  StuckSink& stuck = *sink;
  detector.add_sink(std::move(sink));
  std::thread writer([&] {
    const ThreadScope scope(detector);
    at::zeros({1}).log().item();
  });
  stuck.is_inside.get_future().wait();
  EXPECT_TRUE(in_child([&] {
    (at::zeros({1}) / at::zeros({1})).item();
    return detector.findings().size() == 2;
  }));
  stuck.let_go.set_value();
  writer.join();
}

struct ForkingSink final : Sink {
  explicit ForkingSink(const Detector& detector) : detector_(detector) {}
  void emit(const Finding&) override {
    child_is_well = in_child([&] { return detector_.findings().size() == 1; });
  }
  bool child_is_well = false;

 private:
  const Detector& detector_;
};

TEST(Fork, MayHappenInASink) {
  Detector detector(logging());
  auto sink = std::make_unique<ForkingSink>(detector);
  ForkingSink& forking = *sink;
  detector.add_sink(std::move(sink));
  at::zeros({1}).log().item();
  EXPECT_TRUE(forking.child_is_well);
}

// Fails when ThreadState::reset_after_fork() does nothing: the other thread's scope stays open in the child forever.
TEST(Fork, LeavesTheChildWithTheScopesOfItsThread) {
  Detector detector(logging());
  std::promise<void> is_inside;
  std::promise<void> done;
  std::thread other([&] {
    Detector its_own(logging());
    is_inside.set_value();
    done.get_future().wait();
  });
  is_inside.get_future().wait();
  EXPECT_EQ(open_scopes(), 2);
  EXPECT_TRUE(in_child([&] {
    at::zeros({1}).log().item();
    const auto thread = static_cast<uint64_t>(syscall(SYS_gettid));
    return open_scopes() == 1 && detector.findings().front().thread == thread;
  }));
  done.set_value();
  other.join();
}

// Fails when is_inherited() says no.
TEST(Fork, LeavesUnusedResultsOfTheParentToTheParent) {
  Detector detector(logging());
  const at::Tensor alive = at::zeros({1}).log();
  EXPECT_TRUE(in_child([&] {
    const at::Tensor mine = at::zeros({1}) / at::zeros({1});
    detector.close();
    return detector.findings().size() == 1 && detector.findings().front().op == "aten::div";
  }));
  detector.close();
  ASSERT_EQ(detector.findings().size(), 1u);
  EXPECT_EQ(detector.findings().front().op, "aten::log");
}

// Takes every lock.
void use_every_lock(int round) {
  Detector detector(logging());
  const at::Tensor x = at::ones({64}).requires_grad_();
  const at::Tensor loss = (x * 2).sum();
  loss.backward();
  const at::Tensor bad = at::zeros({4}).log_();
  bad.slice(0, 0, 2).fill_(round);
  bound_cache().record_exported(at::ones({4}));
  rule_of("aten::add");
  detector.name_parameter("x", x);
  detector.stats();
  (bad + 1).sum().item();
}

// Fails when Fork::before() takes no locks: 3 of 8 children hung.
TEST(Fork, AtAnyMomentOfOthersWork) {
  std::atomic<bool> done{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 4; ++i) {
    others.emplace_back([&] {
      for (int round = 0; !done; ++round) use_every_lock(round);
    });
  }
  for (int fork = 0; fork < 50; ++fork) {
    EXPECT_TRUE(in_child([&] {
      use_every_lock(fork);
      return finds_its_own();
    })) << "fork "
        << fork;
  }
  done = true;
  for (std::thread& other : others) other.join();
}

}  // namespace
}  // namespace torchnan
