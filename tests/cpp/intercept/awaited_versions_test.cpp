#include "check/bounds/awaited_versions.h"

#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <torchnan/detector.h>

#include "check/bounds/bound_cache.h"
#include "base/thread_switches.h"

namespace torchnan {
namespace {

unsigned long switches = 0;

// Stands for a thread of the host that takes part in no session and has run.
void run_another_thread() {
  set_thread_switches(&switches);
  ++switches;
}

struct Write {
  const char* name;
  std::function<void(const std::vector<at::Tensor>& targets)> run;
};
void PrintTo(const Write& write, std::ostream* out) { *out << write.name; }

class AwaitedVersion : public testing::TestWithParam<Write> {
 protected:
  static Options options() {
    Options options;
    options.action = Action::kLog;
    return options;
  }
  static std::vector<at::Tensor> targets() { return {at::ones({100, 100}), at::ones({100, 100}), at::ones({4})}; }
  static void call() { at::ones({4}); }
  // Writes a NaN without being intercepted, which increases the version.
  static void write_unseen(const at::Tensor& target) {
    std::thread([&] { target.fill_(NAN); }).join();
  }
};

// Fails when a bound is recorded for a version that nobody increases: the unseen write brings it.
TEST_P(AwaitedVersion, IsNotThatOfAnUnseenWriteAfterACallBelowTheKeyOfVersions) {
  Detector detector(options());
  const std::vector<at::Tensor> written = targets();
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    GetParam().run(written);
  }
  call();
  for (const at::Tensor& one : written) {
    write_unseen(one);
    EXPECT_FALSE(bound_cache().is_finite(one));
    one.mul(2);
  }
  EXPECT_EQ(detector.stats().nonfinite, 3);
}

// The unseen write comes before the next call, in a thread of the host.
TEST_P(AwaitedVersion, IsNotThatOfAnotherThreadOfTheHost) {
  const Detector detector(options());
  const std::vector<at::Tensor> written = targets();
  run_another_thread();
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    GetParam().run(written);
  }
  for (const at::Tensor& one : written) write_unseen(one);
  run_another_thread();
  call();
  for (const at::Tensor& one : written) EXPECT_FALSE(bound_cache().is_finite(one));
}

TEST_P(AwaitedVersion, ComesAfterAnOrdinaryCall) {
  const Detector detector(options());
  const std::vector<at::Tensor> written = targets();
  GetParam().run(written);
  for (const at::Tensor& one : written) EXPECT_TRUE(bound_cache().is_finite(one));
  call();
  for (const at::Tensor& one : written) EXPECT_TRUE(bound_cache().is_finite(one));
}

TEST_P(AwaitedVersion, MayBeThatOfATensorThatIsGone) {
  const Detector detector(options());
  GetParam().run(targets());
  call();
}

INSTANTIATE_TEST_SUITE_P(
    Calls, AwaitedVersion,
    testing::Values(Write{"typed",
                          [](const std::vector<at::Tensor>& targets) {
                            for (const at::Tensor& one : targets) one.mul_(2);
                          }},
                    Write{"boxed",
                          [](const std::vector<at::Tensor>& targets) {
                            for (const at::Tensor& one : targets) one.expm1_();
                          }},
                    Write{"of lists", [](const std::vector<at::Tensor>& targets) { at::_foreach_mul_(targets, 2); }}),
    [](const auto& test) {
      std::string name = test.param.name;
      for (char& letter : name) letter = letter == ' ' ? '_' : letter;
      return name;
    });

// Fails when the switches of threads, which stand for the version of such a tensor, are taken for one that is awaited.
TEST(AwaitedVersionOfInference, DoesNotExist) {
  const c10::InferenceMode inference;
  const Detector detector;
  const at::Tensor target = at::ones({100, 100});
  run_another_thread();
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    target.mul_(2);
  }
  EXPECT_TRUE(bound_cache().is_finite(target));
  run_another_thread();
  EXPECT_FALSE(bound_cache().is_finite(target));
}

}  // namespace
}  // namespace torchnan
