// Many threads under one detection, under their own, and under both, while others come and go.
#include <torchnan/torchnan.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "detection/thread_state.h"

namespace torchnan {
namespace {

constexpr int kThreads = 16;
constexpr int kRounds = 40;

Options logging() {
  Options options;
  options.action = Action::kLog;
  return options;
}

// Runs work(i) in kThreads threads that begin together.
void in_threads(const std::function<void(int)>& work) {
  std::barrier begin(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      begin.arrive_and_wait();
      work(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// One training step in small: what it returns is the same in every thread.
double train(const at::Tensor& weight) {
  const at::Tensor x = at::linspace(0, 1, 32).reshape({4, 8});
  const at::Tensor loss = at::mm(x, weight).tanh().pow(2).mean();
  const at::Tensor gradient = torch::autograd::grad({loss}, {weight})[0];
  at::Tensor copy = weight.detach().clone();
  copy.sub_(gradient, 0.1);
  return copy.sum().item<double>() + loss.item<double>();
}

at::Tensor make_weight() { return at::linspace(-1, 1, 64).reshape({8, 8}).requires_grad_(); }

TEST(Threads, ComputeTheSameUnderOneDetectionAsWithout) {
  const at::Tensor weight = make_weight();
  const double expected = train(weight);
  Detector detector;
  in_threads([&](int) {
    const ThreadScope scope(detector);
    for (int round = 0; round < kRounds; ++round) EXPECT_EQ(train(weight), expected);
  });
  detector.close();
  EXPECT_TRUE(detector.findings().empty());
  EXPECT_EQ(detector.stats().internal_errors, 0);
  EXPECT_GE(detector.stats().ops, kThreads * kRounds * 5);
}

TEST(Threads, FindEachItsOwnUnderItsOwnDetection) {
  const at::Tensor weight = make_weight();
  const double expected = train(weight);
  in_threads([&](int i) {
    for (int round = 0; round < kRounds; ++round) {
      Detector detector(logging());
      EXPECT_EQ(train(weight), expected);
      at::full({i + 1}, -1.0).log().sum().item();
      detector.close();
      ASSERT_EQ(detector.findings().size(), 1u);
      EXPECT_EQ(detector.findings()[0].nan, i + 1);
      EXPECT_EQ(detector.stats().internal_errors, 0);
    }
  });
}

// The last session that ends forgets the old records, but not those that a new session has made meanwhile.
TEST(Threads, OpenASessionWhileTheLastOfTheOthersEnds) {
  for (int round = 0; round < 10 * kRounds; ++round) {
    in_threads([](int i) {
      Detector detector(logging());
      at::full({i + 1}, -1.0).log().sum().item();
      detector.close();
      ASSERT_EQ(detector.findings().size(), 1u);
      EXPECT_EQ(detector.findings()[0].op, "aten::log");
    });
  }
}

// Without Python there are no lines: the findings of all threads are one finding, and repeats of it.
TEST(Threads, MissNothingUnderOneDetection) {
  Detector detector(logging());
  in_threads([&](int) {
    const ThreadScope scope(detector);
    for (int round = 0; round < kRounds; ++round) at::full({2}, -1.0).log().sum().item();
  });
  detector.close();
  ASSERT_EQ(detector.findings().size(), 1u);
  EXPECT_EQ(detector.findings()[0].repeats, kThreads * kRounds - 1);
}

TEST(Threads, ThrowEachAtItself) {
  Detector detector;
  std::atomic<int> thrown{0};
  in_threads([&](int) {
    const ThreadScope scope(detector);
    for (int round = 0; round < kRounds; ++round) {
      try {
        at::full({2}, -1.0).log().sum().item();
      } catch (const NonFiniteError&) {
        ++thrown;
      }
    }
  });
  EXPECT_EQ(thrown, kThreads * kRounds);
}

TEST(Threads, ComeAndGoWhileOthersWorkReadAndNest) {
  const at::Tensor weight = make_weight();
  const double expected = train(weight);
  Detector shared(logging());
  in_threads([&](int i) {
    for (int round = 0; round < kRounds; ++round) {
      if (i % 4 == 0) {
        shared.findings();
        shared.report();
        shared.stats();
        shared.mark_step(round);
      } else if (i % 4 == 1) {
        const Detector fleeting(logging());
      } else if (i % 4 == 2) {
        const ThreadScope scope(shared);
        Detector inner(logging());
        at::full({1}, -1.0).log().item();
        EXPECT_EQ(inner.findings().size(), 1u);
      } else {
        const ThreadScope scope(shared);
        EXPECT_EQ(train(weight), expected);
      }
    }
  });
  shared.close();
  ASSERT_EQ(shared.findings().size(), 1u);
  EXPECT_EQ(shared.stats().internal_errors, 0);
}

// The key travels with autograd's threads; the session that a thread then takes on ends while it is there.
TEST(Threads, MayRunAGraphBackwardThatOthersMade) {
  const at::Tensor weight = make_weight();
  Detector detector;
  const at::Tensor loss = at::mm(weight, weight).tanh().mean();
  const at::Tensor expected = torch::autograd::grad({loss}, {weight}, {}, /*retain_graph=*/true)[0];
  in_threads([&](int) {
    for (int round = 0; round < kRounds; ++round) {
      const at::Tensor gradient = torch::autograd::grad({loss}, {weight}, {}, /*retain_graph=*/true)[0];
      EXPECT_TRUE(at::equal(gradient, expected));
    }
  });
}

struct CountingSink final : Sink {
  explicit CountingSink(int& emitted) : emitted_(emitted) {}
  void emit(const Finding&) override { ++emitted_; }  // not atomic: called by one thread at a time
  int& emitted_;
};

TEST(Threads, CallASinkOneAtATime) {
  Options options = logging();
  options.max_findings = kThreads * kRounds;
  Detector detector(options);
  int emitted = 0;
  detector.add_sink(std::make_unique<CountingSink>(emitted));
  in_threads([&](int i) {
    const ThreadScope scope(detector);
    for (int round = 0; round < kRounds; ++round) {
      guard(at::full({1}, -1.0).log(), std::to_string(i) + "." + std::to_string(round));
    }
  });
  EXPECT_EQ(emitted, kThreads * kRounds);
}

TEST(Threads, LeaveNothingBehind) { EXPECT_EQ(open_scopes(), 0); }

}  // namespace
}  // namespace torchnan
