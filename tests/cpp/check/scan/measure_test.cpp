#include "check/scan/measure.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

#include "check/scan/parallel_norms.h"

namespace torchnan {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

void expect_same(double a, double b) {
  if (std::isnan(b)) {
    EXPECT_TRUE(std::isnan(a));
  } else if (std::isinf(b)) {
    EXPECT_EQ(a, b);
  } else {
    EXPECT_NEAR(a, b, 1e-6 * b);
  }
}

// The implementation for other devices, run on the host: it agrees with the scan.
TEST(MeasureByOperations, AgreesWithTheScan) {
  const std::vector<at::Tensor> tensors = {
      at::randn({30, 7}),
      at::empty({0, 3}),
      at::randn({5}).to(at::kBFloat16),
      at::randn({5}).to(at::kHalf),
      at::randn({5}).to(at::kFloat8_e5m2),
      at::randn({5}, at::kComplexFloat),
      at::randn({4, 5}, at::kComplexDouble).t(),
      at::full({10}, 1e300, at::kDouble),
      at::full({10}, 1e-300, at::kDouble),
      at::full({10}, 1e30),
      at::zeros({3}, at::kDouble),
      at::tensor({1.0, kNaN, -kInf}, at::kDouble),
      at::tensor({1.0, -kInf}, at::kDouble),
      at::tensor({1.0, kNaN, -kInf}, at::kFloat),
      at::tensor({1.0, -kInf}, at::kFloat),
  };
  const at::Tensor result = measure_by_operations(tensors);
  ASSERT_EQ(result.sizes(), at::IntArrayRef({static_cast<int64_t>(tensors.size()), 2}));
  ASSERT_EQ(result.scalar_type(), at::kDouble);
  const std::vector<NormAndMax> extents = norms_of(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "tensor " << i);
    const auto row = result[static_cast<int64_t>(i)];
    expect_same(row[0].item<double>(), extents[i].norm());
    expect_same(row[1].item<double>(), extents[i].max_abs());
  }
}

TEST(MeasureByOperations, IsZeroForEmptyTensors) {
  EXPECT_TRUE(at::equal(measure_by_operations({at::empty({0}), at::empty({2, 0})}), at::zeros({2, 2}, at::kDouble)));
}

}  // namespace
}  // namespace torchnan
