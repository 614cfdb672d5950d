#include "check/bounds/computation_dtype.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>

namespace torchnan {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename... Arguments>
c10::ScalarType dtype_of(const Arguments&... arguments) {
  const std::array operands{operand(arguments)...};
  return computation_dtype(operands, 0);
}

at::Tensor of(at::ScalarType dtype) { return at::ones({3}, dtype); }

TEST(ComputationDtype, IsThatOfTheTensorsWithDimensions) {
  const at::Tensor scalar = at::ones({}, at::kDouble);
  EXPECT_EQ(dtype_of(of(at::kHalf), of(at::kHalf)), at::kHalf);
  EXPECT_EQ(dtype_of(of(at::kHalf), of(at::kFloat)), at::kFloat);
  EXPECT_EQ(dtype_of(of(at::kHalf), of(at::kBFloat16)), at::kFloat);
  EXPECT_EQ(dtype_of(of(at::kFloat), scalar), at::kFloat);
  EXPECT_EQ(dtype_of(of(at::kLong), of(at::kHalf)), at::kHalf);
}

TEST(ComputationDtype, WithoutThemIsThatOfTheScalarsOrTheDefault) {
  const at::Tensor scalar = at::ones({}, at::kDouble);
  at::Tensor number = at::ones({}, at::kDouble);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  EXPECT_EQ(dtype_of(of(at::kLong), scalar), at::kDouble);
  EXPECT_EQ(dtype_of(of(at::kLong), number), at::kFloat);
  EXPECT_EQ(dtype_of(of(at::kLong), 2.5), at::kFloat);
}

TEST(ComputationDtype, NumbersAreRoundedToIt) {
  EXPECT_EQ(kernel_number(1e39, at::kFloat).max_abs, kInfinity);
  EXPECT_EQ(kernel_number(-1e39, at::kDouble).max_abs, 1e39);
  EXPECT_EQ(kernel_number(-1e5, at::kHalf).max_abs, kInfinity);
  EXPECT_EQ(kernel_number(std::numeric_limits<double>::quiet_NaN(), at::kFloat).max_abs, kInfinity);
  EXPECT_GT(kernel_number(1e-42, at::kFloat).max_abs, 1e-42);  // the subnormal number next to it
  EXPECT_EQ(kernel_number(0.1, at::kFloat).max_abs, static_cast<double>(0.1F));
}

TEST(ComputationDtype, RoundedOrFlushedValuesAreNotAboveIt) {
  EXPECT_EQ(kernel_number(1e-46, at::kFloat).min_abs, 0);
  EXPECT_EQ(kernel_number(1e-40, at::kFloat).min_abs, 0);
  EXPECT_EQ(kernel_number(1e-40, at::kDouble).min_abs, 1e-40);
  EXPECT_EQ(kernel_number(-0.5, at::kHalf).min_abs, 0.5);
}

}  // namespace
}  // namespace torchnan
