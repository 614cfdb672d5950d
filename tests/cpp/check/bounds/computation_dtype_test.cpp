#include "check/bounds/computation_dtype.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <vector>

#include "check/bounds/bound_source.h"
#include "check/bounds/dtype_range.h"
#include "detection/thread_state.h"

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

// A rule's arguments find the dtype that all tensors share without promoting.
TEST(ComputationDtype, IsThatOfTheArgumentsOfARule) {
  std::vector<at::Tensor> tensors{at::Tensor()};
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kDouble, at::kLong, at::kBool, at::kComplexFloat}) {
    tensors.push_back(of(dtype));
    tensors.push_back(at::ones({}, dtype));
    tensors.push_back(at::ones({}, dtype));
    tensors.back().unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  const BoundSource source = ThreadState::current().bound_source();
  for (const at::Tensor& one : tensors) {
    for (const at::Tensor& other : tensors) {
      const std::array operands{operand(one), operand(other), operand(2.5)};
      const RuleArguments arguments(operands, source);
      EXPECT_EQ(arguments.dtype(), computation_dtype(operands, 0)) << one.toString() << ", " << other.toString();
      for (const at::Tensor& tensor : {one, other}) {
        if (!tensor.defined() || range_of(tensor.scalar_type()).limit == 0) continue;
        EXPECT_LE(arguments.range().limit, range_of(tensor.scalar_type()).limit);
      }
    }
  }
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
