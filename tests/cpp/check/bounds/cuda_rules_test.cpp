// Rules that hold for CUDA's kernels, and not for those of the host. Tensors on a GPU are only described here.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "check/bounds/bound_source.h"
#include "check/bounds/kernels.h"
#include "check/bounds/operand.h"
#include "check/bounds/rules.h"
#include "detection/thread_state.h"

namespace torchnan {
namespace {

constexpr double kEps = 1e-5;

// A tensor on a device that this machine may not have, without memory.
at::Tensor described(at::IntArrayRef shape, at::ScalarType dtype, c10::DeviceType device) {
  const auto key = device == c10::kCUDA ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, c10::Device(device, 0)), nullptr,
                       false);
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key),
                                                             c10::scalarTypeToTypeMeta(dtype));
  made.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return made;
}

// All tensors on devices are within this bound.
class Within final : public ExternalBounds {
 public:
  explicit Within(double max_abs) : max_abs_(max_abs) {}
  Bound bound_of(const at::Tensor&) const override { return {max_abs_}; }
  bool is_made_by(const at::Tensor&, std::string_view) const override { return false; }
  uint64_t write_of(const at::Tensor&) const override { return 0; }

 private:
  double max_abs_;
};

template <typename... Arguments>
std::vector<Bound> bounds_of(const char* op, double max_abs, const Arguments&... arguments) {
  const Within everything(max_abs);
  const std::array operands{operand(arguments)...};
  const BoundSource source = ThreadState::current().bound_source(&everything);
  std::vector<Bound> results(4);
  (*rule_of(op).rule)(RuleArguments(operands, source), results);
  return results;
}

Bound normalised(at::IntArrayRef shape, double max_abs) {
  const at::Tensor x = described(shape, at::kBFloat16, c10::kCUDA), none;
  return bounds_of("aten::native_batch_norm", max_abs, x, none, none, none, none, true, 0.1, kEps)[0];
}

// As a kernel does in one pass, and with the roundings of one thread, which are the largest.
float largest_normalised(const std::vector<float>& x) {
  float mean = 0, squares = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const float apart = x[i] - mean;
    mean += apart / static_cast<float>(i + 1);
    squares += apart * (x[i] - mean);
  }
  const float r = 1 / std::sqrt(squares / static_cast<float>(x.size()) + static_cast<float>(kEps));
  float largest = 0;
  for (const float one : x) largest = std::max(largest, std::abs((one - mean) * r));
  return largest;
}

TEST(CudaRules, TheMeanOfABatchIsNotRoundedTo16Bits) {
  const double bound = normalised({64, 64, 56, 56}, 0x1p10).max_abs;
  EXPECT_GT(bound, std::sqrt(64 * 56 * 56));
  EXPECT_LT(bound, 2 * std::sqrt(64 * 56 * 56));
}

TEST(CudaRules, BatchNormStaysWithinItsBound) {
  for (const float centre : {0.0F, 1.0F, 1000.0F, 0x1p20F}) {
    for (const float step : {0.0F, 0x1p-8F * centre, 1.0F}) {  // bfloat16 has 8 bits
      std::vector<float> x(1 << 16, centre);
      for (size_t i = 0; i < x.size(); i += 3) x[i] += step;
      x.back() += step;
      const double max_abs = std::abs(centre) + step;
      const double bound = normalised({1 << 16, 1}, max_abs).max_abs;
      EXPECT_LE(largest_normalised(x), bound) << centre << " " << step;
    }
  }
}

TEST(CudaRules, ConvolutionsOfBFloat16HaveABoundAndThoseOfFloat16HaveNone) {
  const auto bound_of = [](at::ScalarType dtype, c10::DeviceType device) {
    const at::Tensor x = described({8, 16, 32, 32}, dtype, device), weight = described({16, 16, 3, 3}, dtype, device);
    const at::Tensor none;
    const std::array<int64_t, 2> ones{1, 1}, zeros{0, 0};
    return bounds_of("aten::convolution", 4, x, weight, none, at::IntArrayRef(ones), at::IntArrayRef(zeros),
                     at::IntArrayRef(ones), false, at::IntArrayRef(zeros), int64_t{1})[0];
  };
  EXPECT_GE(bound_of(at::kBFloat16, c10::kCUDA).max_abs, 16 * 9 * 16);
  EXPECT_LE(bound_of(at::kBFloat16, c10::kCUDA).max_abs, 11 * 16 * 9 * 16);  // sums in 16 bits grow by 5
  EXPECT_FALSE(bound_of(at::kHalf, c10::kCUDA).known());
  EXPECT_FALSE(bound_of(at::kBFloat16, c10::kCPU).known());
}

// ROCm's tensors are of the type CUDA as well.
TEST(RulesOfKernels, GiveNoBoundForKernelsThatNobodyHasLookedAt) {
  const auto bound_on = [](c10::DeviceType device) {
    const at::Tensor x = described({8, 16, 32, 32}, at::kFloat, device),
                     weight = described({16, 16, 3, 3}, at::kFloat, device);
    const at::Tensor none;
    const std::array<int64_t, 2> ones{1, 1}, zeros{0, 0};
    return std::array{
        bounds_of("aten::convolution", 4, x, weight, none, at::IntArrayRef(ones), at::IntArrayRef(zeros),
                  at::IntArrayRef(ones), false, at::IntArrayRef(zeros), int64_t{1})[0],
        bounds_of("aten::native_batch_norm", 4, x, none, none, none, none, true, 0.1, kEps)[0],
        bounds_of("aten::_softmax", 4, x, int64_t{1}, false)[0],
    };
  };
  const auto is_known = [](const Bound& bound) { return bound.known(); };
  EXPECT_TRUE(std::ranges::all_of(bound_on(c10::kCUDA), is_known));
  EXPECT_TRUE(std::ranges::none_of(bound_on(c10::kXPU), is_known));
  declare_kernels(c10::kXPU, Kernels::kHost);
  EXPECT_TRUE(std::ranges::all_of(bound_on(c10::kXPU), is_known));
  declare_kernels(c10::kXPU, Kernels::kUnknown);
  EXPECT_TRUE(std::ranges::none_of(bound_on(c10::kXPU), is_known));
}

// addmm.dtype and baddbmm.dtype have an argument before beta and alpha. A dtype is a number in a boxed call.
TEST(CudaRules, ThatConvertTheResultOfAMatrixProductReadBothScalars) {
  for (const char* op : {"aten::addmm", "aten::baddbmm"}) {
    const at::Tensor c = described({3, 8, 8}, at::kBFloat16, c10::kCUDA);
    const auto bound_of = [&](const at::Scalar& beta, const at::Scalar& alpha) {
      return bounds_of(op, 1, c, c, c, static_cast<int64_t>(at::kFloat), beta, alpha)[0].max_abs;
    };
    EXPECT_GE(bound_of(1, 100), 1 + 100 * 8) << op;
    EXPECT_GE(bound_of(100, 1), 100 + 8) << op;
    EXPECT_LE(bound_of(1, 1), 6 * (1 + 8)) << op;  // sums in 16 bits grow by 5
  }
  const at::Tensor c = described({8, 8}, at::kFloat, c10::kCUDA);
  EXPECT_LE(bounds_of("aten::_addmm_activation", 1, c, c, c, at::Scalar(2), at::Scalar(1), true)[0].max_abs, 11);
}

}  // namespace
}  // namespace torchnan
