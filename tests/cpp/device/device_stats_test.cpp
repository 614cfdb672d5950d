#include "device/device_stats.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "device/lagging_device.h"

namespace torchnan {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

class DeviceStatsTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  DeviceStatsTest() { lagging::plug_into_torchnan(); }

  // 4 * 1,100,003 elements, which are counted in parts.
  static at::Tensor large() {
    const at::ScalarType wide = at::isComplexType(GetParam()) ? at::kComplexDouble : at::kDouble;
    at::Tensor x = at::arange(4 * 1'100'003).remainder(7).sub(2).to(wide).view({4, 1'100'003});
    x[2][1'100'000] = kNan;
    x[3][0] = kInf;
    x[3][1] = -kInf;
    if (at::isComplexType(GetParam())) {
      at::Tensor parts = at::view_as_real(x);
      parts[1][7][1] = -kInf;
      parts[3][2][0] = kInf;
      parts[3][2][1] = kNan;
    }
    return x.to(GetParam());
  }

  static void expect_as_on_host(const at::Tensor& on_host) {
    const at::Tensor there = on_host.to(lagging::device());
    lagging::run_all();
    lagging::reset_counts();
    const TensorStats found = compute_stats_on_device(there);
    EXPECT_LE(lagging::counts().bytes_back, 1000);
    const TensorStats expected = compute_stats(on_host);
    EXPECT_EQ(found.tally.nan, expected.tally.nan);
    EXPECT_EQ(found.tally.posinf, expected.tally.posinf);
    EXPECT_EQ(found.tally.neginf, expected.tally.neginf);
    EXPECT_EQ(found.tally.zeros, expected.tally.zeros);
    EXPECT_EQ(found.tally.min, expected.tally.min);
    EXPECT_EQ(found.tally.max, expected.tally.max);
    EXPECT_EQ(found.tally.absmax, expected.tally.absmax);
    EXPECT_EQ(found.tally.min_abs, expected.tally.min_abs);
    EXPECT_EQ(found.first_index, expected.first_index);
  }
};

TEST_P(DeviceStatsTest, CountsWhereItIsAsTheHostDoes) {
  const at::Tensor x = large();
  expect_as_on_host(x);
  expect_as_on_host(x.t());
  expect_as_on_host(at::full({x.numel()}, kNan).to(x.scalar_type()));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DeviceStatsTest,
                         testing::Values(at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat,
                                         at::kFloat8_e5m2));

TEST(DeviceStats, CopiesSmallTensors) {
  at::Tensor x = at::ones({2, 3});
  x[1][2] = kNan;
  const at::Tensor there = x.to(lagging::device());
  lagging::run_all();
  lagging::reset_counts();
  const TensorStats found = compute_stats_on_device(there);
  EXPECT_EQ(lagging::counts().bytes_back, 24);
  EXPECT_EQ(found.first_index, (std::vector<int64_t>{1, 2}));
}

}  // namespace
}  // namespace torchnan
