#include "check/scan/parallel_norms.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>

namespace torchnan {
namespace {

// Computed by PyTorch's own operations, in float64.
void expect_extent(const at::Tensor& tensor, const NormAndMax& norm_and_max) {
  const at::Tensor dense = tensor.contiguous();
  const at::Tensor values = (dense.is_complex() ? at::view_as_real(dense) : dense).to(at::kDouble);
  const double norm = at::linalg_vector_norm(values).item<double>();
  EXPECT_NEAR(norm_and_max.norm(), norm, 1e-12 * norm);
  EXPECT_EQ(norm_and_max.max_abs(), values.numel() == 0 ? 0.0 : values.abs().max().item<double>());
}

void expect_extents(const std::vector<at::Tensor>& tensors) {
  const std::vector<NormAndMax> extents = norms_of(tensors);
  ASSERT_EQ(extents.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "tensor " << i << ", " << tensors[i].toString() << tensors[i].sizes()
                                    << tensors[i].strides());
    expect_extent(tensors[i], extents[i]);
  }
}

const at::ScalarType kDtypes[] = {at::kFloat,        at::kDouble,        at::kHalf,        at::kBFloat16,
                                  at::kComplexFloat, at::kComplexDouble, at::kComplexHalf, at::kFloat8_e5m2};

at::Tensor random(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::randn(sizes, dtype == at::kComplexHalf ? at::kComplexFloat : at::kFloat).to(dtype);
}

std::vector<at::Tensor> views_of(const at::Tensor& t) {  // of [n, m, 5]
  return {
      t,
      t.permute({2, 0, 1}),
      t.slice(0, 1),
      t.slice(1, 0, t.size(1), 2),
      t.slice(2, 1, 4),
      t.slice(2, 0, 5, 2).transpose(0, 1),
      t.select(2, 3),
      t.unsqueeze(1).expand({-1, 3, -1, -1}),
      t.slice(2, 2, 3).expand({-1, -1, 4}),
      t.slice(0, 0, 0),
      t.select(0, 0).select(0, 0).select(0, 0),
      t.select(0, 0).select(0, 0).select(0, 0).expand({7, 9}),
      t.as_strided({11, 3}, {2, 1}),  // overlaps with itself
  };
}

TEST(SharedExtents, CountEveryLogicalElementOnce) {
  for (const auto dtype : kDtypes) expect_extents(views_of(random({3, 4, 5}, dtype)));
}

// More than a chunk and than one gathered block, neither of which ends with a row.
TEST(SharedExtents, CountEveryLogicalElementOfLargeTensorsOnce) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kComplexDouble}) {
    expect_extents(views_of(random({101, 997, 5}, dtype)));
  }
}

TEST(SharedExtents, AreThoseOfTheTensorsInTheirOrder) {
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 300; ++i) {
    const auto dtype = kDtypes[i % std::size(kDtypes)];
    tensors.push_back((random({i % 7 == 0 ? 40000 + i : i % 50}, at::kFloat) * (i + 1)).to(dtype));
  }
  expect_extents(tensors);
  EXPECT_TRUE(norms_of({}).empty());
}

TEST(SharedExtents, KeepABadElementInItsTensor) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 5; ++i) tensors.push_back(at::ones({100000}));
    tensors[2][99999] = bad;
    const std::vector<NormAndMax> extents = norms_of(tensors);
    for (size_t i = 0; i < 5; ++i) EXPECT_EQ(std::isfinite(extents[i].norm()), i != 2);
    EXPECT_EQ(std::isnan(extents[2].max_abs()), std::isnan(bad));
  }
}

uint64_t bits_of(double x) { return std::bit_cast<uint64_t>(x); }

TEST(SharedExtents, AreTheSameForAnyNumberOfThreads) {
  std::vector<at::Tensor> tensors = {at::randn({3000001}), at::randn({700001}, at::kDouble),
                                     at::randn({2001, 999}).t().slice(0, 0, 999, 2), at::randn({500000}).to(at::kHalf)};
  for (int i = 0; i < 100; ++i) tensors.push_back(at::randn({i * i}));
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const std::vector<NormAndMax> alone = norms_of(tensors);
  for (const int several : {2, 3, 8}) {
    at::set_num_threads(several);
    const std::vector<NormAndMax> shared = norms_of(tensors);
    for (size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(bits_of(shared[i].norm()), bits_of(alone[i].norm())) << "tensor " << i << ", threads " << several;
      EXPECT_EQ(bits_of(shared[i].max_abs()), bits_of(alone[i].max_abs())) << "tensor " << i << ", threads " << several;
    }
  }
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace torchnan
