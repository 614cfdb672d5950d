// Detection on a device that lags behind the host: what is told, when, and that nothing waits for it before.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include <torchnan/detector.h>
#include <torchnan/guard.h>

#include "device/batch.h"
#include "device/lagging_device.h"
#include "device/scanner.h"
#include "origin/harm.h"

namespace torchnan {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Options options_of(Action action) {
  Options options;
  options.action = action;
  return options;
}

class DeviceCheckTest : public testing::Test {
 protected:
  DeviceCheckTest() {
    lagging::plug_into_torchnan();
    lagging::run_all();
    lagging::forget_counts();
  }

  static at::Tensor there(const at::Tensor& tensor) {
    at::Tensor made = tensor.to(lagging::device());
    lagging::run_all();
    lagging::forget_counts();
    return made;
  }

  Detector detector{options_of(Action::kLog)};
};

TEST_F(DeviceCheckTest, AHealthyProgramIsNotWaitedFor) {
  const at::Tensor x = there(at::ones({100}));
  at::Tensor y = x;
  for (int i = 0; i < 300; ++i) y = (y * 1.5).sin().add_(x);
  EXPECT_EQ(lagging::counts().waits, 0);
  EXPECT_EQ(lagging::counts().copies_back, 0);
  EXPECT_TRUE(detector.findings().empty());
  EXPECT_GE(detector.stats().checked, 900);
}

TEST_F(DeviceCheckTest, TheOriginIsToldWhenAValueIsReadBack) {
  const at::Tensor x = there(at::zeros({4}));
  const at::Tensor y = ((x.sub(1).log() + 1) * 2).sum();
  EXPECT_TRUE(detector.findings().empty());
  y.item();
  ASSERT_EQ(detector.findings().size(), 1u);
  const Finding found = detector.findings()[0];
  EXPECT_EQ(found.op, "aten::log");
  EXPECT_EQ(found.kind, Kind::kNaN);
  EXPECT_EQ(found.harm.kind, HarmKind::kRead);
  EXPECT_EQ(found.device, "lagging:0");
  EXPECT_EQ(found.shape, std::vector<int64_t>{4});
  ASSERT_EQ(found.inputs.size(), 1u);
  EXPECT_EQ(found.inputs[0].name, "self");
  EXPECT_EQ(found.inputs[0].tally.absmax, 1.0);
}

TEST_F(DeviceCheckTest, WhatIsStillThereIsCounted) {
  at::Tensor x = at::ones({2, 3});
  x[1][0] = -1;
  const at::Tensor y = there(x).log();
  y.sum().item();
  ASSERT_EQ(detector.findings().size(), 1u);
  EXPECT_EQ(detector.findings()[0].nan, 1);
  EXPECT_EQ(detector.findings()[0].first_index, (std::vector<int64_t>{1, 0}));
}

TEST_F(DeviceCheckTest, WhatCameInIsAnInput) {
  const at::Tensor x = there(at::full({4}, kNan));
  (x * 2).sum().item();
  ASSERT_EQ(detector.findings().size(), 1u);
  EXPECT_EQ(detector.findings()[0].origin, Origin::kInput);
  EXPECT_EQ(detector.findings()[0].op, "aten::mul");
}

TEST_F(DeviceCheckTest, WhatComesToTheHostKeepsItsOrigin) {
  const at::Tensor x = there(at::zeros({4}));
  const at::Tensor y = (x / x).to(at::kCPU);
  (y * 2).sum().item();
  ASSERT_EQ(detector.findings().size(), 1u);
  EXPECT_EQ(detector.findings()[0].op, "aten::div");
}

TEST_F(DeviceCheckTest, WhatGoesToTheDeviceKeepsItsOrigin) {
  const at::Tensor x = at::zeros({4}).log();
  (x.to(lagging::device()) + 1).sum().item();
  ASSERT_EQ(detector.findings().size(), 1u);
  EXPECT_EQ(detector.findings()[0].op, "aten::log");
  EXPECT_EQ(detector.findings()[0].device, "cpu");
}

TEST_F(DeviceCheckTest, NothingIsToldOfWhatIsRepaired) {
  const at::Tensor x = there(at::zeros({4}));
  const at::Tensor y = x / x;
  y.masked_fill(y.ne(y), 0.0).sum().item();
  EXPECT_TRUE(detector.findings().empty());
}

TEST_F(DeviceCheckTest, MasksAreMeant) {
  const at::Tensor scores = there(at::ones({4, 4}));
  const at::Tensor mask = there(at::ones({4, 4}).triu(1).to(at::kBool));
  const at::Tensor masked = scores.masked_fill(mask, -std::numeric_limits<double>::infinity());
  at::softmax(masked * 2, -1).sum().item();
  EXPECT_TRUE(detector.findings().empty());
}

TEST_F(DeviceCheckTest, TheEndTellsWhatIsStillHeldByNobodyAsUnused) {
  const at::Tensor y = there(at::zeros({4})).sub(1).log();
  detector.close();
  ASSERT_EQ(detector.findings().size(), 1u);
  EXPECT_EQ(detector.findings()[0].op, "aten::log");
}

// -- when scans are launched: each of these fails without the rule that it is named after

class LaunchTest : public DeviceCheckTest {
 protected:
  // Before anything is waited for.
  static bool is_alarmed_once_the_device_has_come_here() {
    lagging::run_all();
    return Scanner::of(lagging::device())->alarm() != cuda::kQuiet;
  }

  const at::Tensor zeros = there(at::zeros({4}));
  const at::Tensor ones = there(at::ones({4}));
};

TEST_F(LaunchTest, ByCount) {
  const at::Tensor bad = zeros / zeros;
  EXPECT_FALSE(is_alarmed_once_the_device_has_come_here());
  for (uint32_t i = 0; i < cuda::kMaxEntries; ++i) ones + 1;
  EXPECT_TRUE(is_alarmed_once_the_device_has_come_here());
}

TEST_F(LaunchTest, ByBytes) {
  Options options = options_of(Action::kLog);
  options.exact = true;
  const Detector exact(options);
  const at::Tensor bad = zeros / zeros;
  const at::Tensor large = at::empty({Batch::kMostBytes / 4}, lagging::device()).fill_(1.0);
  EXPECT_TRUE(is_alarmed_once_the_device_has_come_here());
}

TEST_F(LaunchTest, BeforeWhatWaitsIsOverwritten) {
  const at::Tensor bad = zeros / zeros;
  bad.fill_(1.0);
  detector.close();
  ASSERT_EQ(detector.findings().size(), 1u);  // that nobody has used it
  EXPECT_EQ(detector.findings()[0].op, "aten::div");
}

TEST_F(LaunchTest, OnTheStreamThatItWaitsOn) {
  there(at::full({4}, kNan)).reset();  // whose memory is given out again
  const c10::Stream other = lagging::new_stream();
  const at::Tensor good = ones + 1;
  {
    const lagging::OnStream on_other(other);
    for (uint32_t i = 0; i < cuda::kMaxEntries; ++i) at::empty({8}, lagging::device()).fill_(1.0);
    lagging::run(other);
  }
  EXPECT_EQ(Scanner::of(lagging::device())->alarm(), cuda::kQuiet);
}

TEST_F(LaunchTest, BeforeAValueIsReadBack) {
  const at::Tensor bad = zeros / zeros;
  lagging::run_all();
  bad.sum().item();
  EXPECT_EQ(detector.findings().size(), 1u);
}

TEST_F(LaunchTest, WhenAStepEnds) {
  const at::Tensor bad = zeros / zeros;
  judge_tensors(*detector.watch(), HarmKind::kGradient, {ones}, [](size_t) { return std::string("ones"); });
  EXPECT_TRUE(is_alarmed_once_the_device_has_come_here());
}

TEST_F(LaunchTest, WhenDetectionEnds) {
  const at::Tensor bad = zeros / zeros;
  detector.close();
  EXPECT_EQ(detector.findings().size(), 1u);
}

TEST_F(LaunchTest, InACapture) {
  const at::Tensor given = there(at::ones({4}));
  const c10::Stream other = lagging::new_stream();
  at::Tensor result;
  std::function<void()> replay;
  {
    const lagging::OnStream on_other(other);
    lagging::begin_capture(other);
    result = given.log() + 1;
    replay = lagging::end_capture(other);
    replay();
    lagging::run_all();
  }
  EXPECT_TRUE(detector.findings().empty());
  result.sum().item();
  EXPECT_TRUE(detector.findings().empty());
  given.fill_(-1.0);
  lagging::run_all();
  {
    const lagging::OnStream on_other(other);
    replay();
    lagging::run_all();
  }
  result.sum().item();
  ASSERT_EQ(detector.findings().size(), 1u);
  EXPECT_EQ(detector.findings()[0].op, "aten::log");
}

// -- late notices

TEST_F(DeviceCheckTest, WhatDidHarmIsToldByTheNextOperationThatHearsOfIt) {
  const at::Tensor x = there(at::zeros({4}));
  const at::Tensor bad = x / x;
  judge_roots(*detector.watch(), {bad.sum()}, {});
  EXPECT_TRUE(detector.findings().empty());
  lagging::run_all();
  EXPECT_TRUE(detector.findings().empty());
  x + 1;
  ASSERT_EQ(detector.findings().size(), 1u);
  EXPECT_EQ(detector.findings()[0].op, "aten::div");
  EXPECT_EQ(detector.findings()[0].harm.kind, HarmKind::kBackward);
}

TEST_F(DeviceCheckTest, OneCauseIsToldOnce) {
  const at::Tensor x = there(at::zeros({4}));
  const at::Tensor bad = x / x;
  for (int i = 0; i < 5; ++i) (bad * i).sum().item();
  EXPECT_EQ(detector.findings().size(), 1u);
}

TEST_F(DeviceCheckTest, WhenTheTroubleIsOverNothingIsWaitedFor) {
  const at::Tensor x = there(at::zeros({4}));
  (x / x).sum().item();
  EXPECT_EQ(detector.findings().size(), 1u);
  for (int i = 0; i < 3; ++i) judge_tensors(*detector.watch(), HarmKind::kGradient, {x}, [](size_t) { return ""; });
  lagging::run_all();
  lagging::forget_counts();
  for (int i = 0; i < 3; ++i) judge_tensors(*detector.watch(), HarmKind::kGradient, {x}, [](size_t) { return ""; });
  EXPECT_EQ(lagging::counts().waits, 0);
}

TEST(DeviceCheck, RaisesWhereHarmIsHeardOf) {
  lagging::plug_into_torchnan();
  const at::Tensor x = at::zeros({4}).to(lagging::device());
  Detector detector;
  EXPECT_THROW((x / x).sum().item(), NonFiniteError);
}

TEST(DeviceCheck, TellsEveryOriginAtOnceIfAskedTo) {
  lagging::plug_into_torchnan();
  const at::Tensor x = at::zeros({4}).to(lagging::device());
  Options options;
  options.when = When::kOrigin;
  Detector detector(options);
  EXPECT_THROW(x / x, NonFiniteError);
}

}  // namespace
}  // namespace torchnan
