// The scan by operations of PyTorch, against the body of the kernel.
#include "device/operator_scan.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "device/batch.h"
#include "device/lagging_device.h"
#include "device/scanner.h"
#include "check/scan/float_format.h"

namespace torchnan {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

class OperatorScanTest : public testing::TestWithParam<c10::ScalarType> {
 protected:
  static Scanner& kernel_is_set() {
    lagging::plug_into_torchnan(/*by_kernel=*/true);
    return *Scanner::of(lagging::device());
  }

  // Returns the largest magnitude, the same for every NaN, and the alarm.
  static std::pair<uint64_t, uint64_t> scan(Scanner& scanner, const at::Tensor& tensor, EventNumber number) {
    void* const stream = scanner.current_stream().handle;
    ScanList scans;
    scanner.clear(static_cast<uint32_t>(number), 1, stream);
    EXPECT_TRUE(scans.add(tensor, number, float_format(tensor.scalar_type())->infinity - 1));
    scans.launch(scanner, stream);
    lagging::run_all();
    cuda::Slot slot{};
    scanner.read(number, 1, &slot);
    const uint64_t alarm = scanner.alarm();
    if (alarm != cuda::kNoAlarm) scanner.reset_alarm(alarm);
    lagging::run_all();
    EXPECT_EQ(scanner.alarm(), cuda::kNoAlarm);
    return {std::min(slot.max_magnitude, traits_of(*encoding_of(tensor.scalar_type())).first_nan), alarm};
  }

  Scanner& kernel = kernel_is_set();
  Scanner operators{lagging::device(), nullptr};
};

TEST_P(OperatorScanTest, FindsWhatTheKernelFinds) {
  EventNumber number = 1;
  for (const double worst : {0.5, -2.0, kInfinity, -kInfinity, kNan}) {
    at::Tensor values = at::linspace(-1, 1, 999);
    values[998] = worst;
    const at::Tensor there = values.to(GetParam()).to(lagging::device());
    for (const at::Tensor& tensor : {there, there.slice(0, 1), there.slice(0, 0, 999, 2), there[998], there[0]}) {
      EXPECT_EQ(scan(operators, tensor, number), scan(kernel, tensor, number)) << worst << " " << tensor.sizes();
      ++number;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryDtype, OperatorScanTest,
                         testing::Values(at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kFloat8_e4m3fn,
                                         at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz,
                                         at::kComplexFloat, at::kComplexDouble),
                         [](const auto& test) { return std::string(c10::toString(test.param)); });

TEST(OperatorScan, TheLowestNumberOfAllStreamsIsTheAlarm) {
  lagging::plug_into_torchnan(/*by_kernel=*/true);
  Scanner scanner(lagging::device(), nullptr);
  const at::Tensor bad = at::full({64}, kNan).to(lagging::device());
  lagging::run_all();
  const auto scan = [&](EventNumber number) {
    ScanList scans;
    ASSERT_TRUE(scans.add(bad, number, float_format(at::kFloat)->infinity - 1));
    scans.launch(scanner, scanner.current_stream().handle);
  };
  scan(20);
  {
    const lagging::OnStream other(lagging::new_stream());
    scan(10);
  }
  EXPECT_EQ(scanner.alarm(), cuda::kNoAlarm);  // nothing has run
  lagging::run_all();
  EXPECT_EQ(scanner.alarm(), 10u);
  scanner.reset_alarm(15);
  EXPECT_EQ(scanner.alarm(), cuda::kNoAlarm);
  lagging::run_all();
  EXPECT_EQ(scanner.alarm(), 10u);  // has come meanwhile
  scanner.reset_alarm(10);
  lagging::run_all();
  EXPECT_EQ(scanner.alarm(), cuda::kNoAlarm);
}

TEST(OperatorScan, AStreamThatIsNotYetResetHidesNoAlarmOfAnother) {
  lagging::plug_into_torchnan(/*by_kernel=*/true);
  Scanner scanner(lagging::device(), nullptr);
  const at::Tensor values = at::ones({64}).to(lagging::device());
  lagging::run_all();
  const auto scan = [&](EventNumber number) {
    ScanList scans;
    ASSERT_TRUE(scans.add(values, number, /*limit=*/0));
    scans.launch(scanner, scanner.current_stream().handle);
  };
  {
    const lagging::OnStream other(lagging::new_stream());
    scan(10);
  }
  lagging::run_all();
  scanner.reset_alarm(10);
  scan(20);
  lagging::run(c10::impl::getDeviceGuardImpl(lagging::kType)->getDefaultStream(lagging::device()), 1000);
  EXPECT_EQ(scanner.alarm(), 20u);
}

TEST(OperatorScan, IsNotCaptured) {
  Scanner scanner(lagging::device(), nullptr);
  const c10::Stream other = lagging::new_stream();
  const lagging::OnStream on_other(other);
  EXPECT_FALSE(scanner.current_stream().is_capturing);
  lagging::begin_capture(other);
  EXPECT_TRUE(scanner.current_stream().is_capturing);
  EXPECT_FALSE(scanner.can_be_captured());
  lagging::end_capture(other);
}

}  // namespace
}  // namespace torchnan
