#include "check/scan/tensor_scan.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace torchnan {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

at::Tensor with(at::Tensor tensor, std::initializer_list<int64_t> at, double value) {
  std::vector<at::indexing::TensorIndex> index(at.begin(), at.end());
  tensor.index_put_(index, value);
  return tensor;
}

struct Layout {
  const char* name;
  std::function<at::Tensor(at::Tensor)> make;  // from a contiguous [4, 6, 5]
};

const Layout kLayouts[] = {
    {"Contiguous", [](at::Tensor t) { return t; }},
    {"Permuted", [](at::Tensor t) { return t.permute({2, 0, 1}); }},
    {"Sliced", [](at::Tensor t) { return t.slice(1, 0, 6, 2); }},
    {"InnerStrided", [](at::Tensor t) { return t.slice(2, 0, 5, 2); }},
    {"Offset", [](at::Tensor t) { return t.slice(0, 0, 3); }},
    {"Expanded", [](at::Tensor t) { return t.unsqueeze(0).expand({7, 4, 6, 5}); }},
};

class EveryLayout : public testing::TestWithParam<Layout> {};

TEST_P(EveryLayout, FindsExactlyTheValuesOfTheView) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat}) {
    const at::Tensor clean = GetParam().make(at::ones({4, 6, 5}, dtype));
    EXPECT_TRUE(check_finite(clean).finite);
    EXPECT_EQ(check_finite(clean).skip, Skip::kNone);
    const at::Tensor seen = GetParam().make(with(at::ones({4, 6, 5}, dtype), {0, 0, 0}, kNaN));
    EXPECT_FALSE(check_finite(seen).finite);
    EXPECT_EQ(compute_stats(seen).tally.nan, at::isnan(seen).sum().item<int64_t>());
    const at::Tensor corner = GetParam().make(with(at::ones({4, 6, 5}, dtype), {3, 5, 4}, -kInf));
    const int64_t shown = at::isinf(corner).sum().item<int64_t>();
    EXPECT_EQ(check_finite(corner).finite, shown == 0);
    EXPECT_EQ(compute_stats(corner).tally.neginf, shown);
    EXPECT_EQ(kinds_of(corner).neginf(), shown > 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, EveryLayout, testing::ValuesIn(kLayouts),
                         [](const auto& test) { return test.param.name; });

TEST(TensorStats, HasCountsRangeAndTheFirstIndexInLogicalOrder) {
  at::Tensor t = at::arange(12, at::kFloat).view({3, 4}).clone();
  with(t, {1, 2}, kInf);
  with(t, {2, 0}, kNaN);
  with(t, {2, 3}, -kInf);
  const TensorStats stats = compute_stats(t.t());  // logical order is that of the transposed
  EXPECT_EQ(stats.tally.nan, 1);
  EXPECT_EQ(stats.tally.posinf, 1);
  EXPECT_EQ(stats.tally.neginf, 1);
  EXPECT_EQ(stats.first_index, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(stats.tally.min, 0.0);
  EXPECT_EQ(stats.tally.max, 10.0);
  EXPECT_EQ(stats.tally.absmax, 10.0);
}

TEST(TensorStats, HasNoRangeWhereNothingIsFinite) {
  const TensorStats stats = compute_stats(at::full({3}, kNaN));
  EXPECT_EQ(stats.tally.nan, 3);
  EXPECT_FALSE(stats.tally.min.has_value());
}

TEST(TensorStats, CountsAComplexElementOnce) {
  const at::Tensor t = at::complex(at::tensor({1.0, kNaN, kInf}), at::tensor({-kInf, kInf, 2.0}));
  const TensorStats stats = compute_stats(t);
  EXPECT_EQ(stats.tally.nan, 1);
  EXPECT_EQ(stats.tally.posinf, 1);
  EXPECT_EQ(stats.tally.neginf, 1);
}

TEST(ElementsBeyond, AreThoseLargerThanTheNumber) {
  for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    at::Tensor values = at::ones({9000}, dtype);
    for (const int64_t element : {0, 4095, 4096, 8999}) values[element] = element % 2 == 0 ? 40000 : -40000;
    values[17] = 32752;  // equal, and exact in each dtype but bfloat16, which rounds it up
    std::vector<int64_t> expected{0, 4095, 4096, 8999};
    if (dtype == at::kBFloat16) expected.insert(expected.begin() + 1, 17);
    EXPECT_EQ(elements_beyond(values, 32752, 8), expected) << dtype;
  }
}

TEST(ElementsBeyond, CountAComplexElementOnce) {
  const at::Tensor parts = at::tensor({1.0F, 9.0F, -9.0F, 9.0F, 2.0F, 2.0F}).reshape({3, 2});
  EXPECT_EQ(elements_beyond(at::view_as_complex(parts), 8, 8), (std::vector<int64_t>{0, 1}));
}

TEST(ElementsBeyond, AreUnknownIfTheyAreManyOrHaveGaps) {
  const at::Tensor values = at::full({4, 4}, 9.0F);
  EXPECT_EQ(elements_beyond(values, 8, 15), std::nullopt);
  EXPECT_EQ(elements_beyond(values, 8, 16)->size(), 16);
  EXPECT_EQ(elements_beyond(values.t().slice(0, 0, 2), 8, 16), std::nullopt);
  EXPECT_TRUE(elements_beyond(values, 9, 0)->empty());
}

TEST(CheckFinite, LooksAtScalarsAndPassesEmptyTensorsBy) {
  EXPECT_FALSE(check_finite(at::scalar_tensor(kNaN)).finite);
  EXPECT_EQ(check_finite(at::empty({0, 3})).skip, Skip::kEmpty);
}

TEST(CheckFinite, ReadsSubnormalNumbersInAThreadThatFlushesThem) {
  const at::Tensor small = at::full({8}, -1e-39), number = small.select(0, 0).to(at::kBFloat16);
  if (!at::globalContext().setFlushDenormal(true)) GTEST_SKIP() << "this processor does not flush them";
  const double max_abs = check_finite(small).max_abs, value = scalar_value(number).value_or(0);
  at::globalContext().setFlushDenormal(false);
  EXPECT_NEAR(max_abs, 1e-39, 1e-44);
  EXPECT_NEAR(value, -1e-39, 1e-40);
}

TEST(CheckFinite, ChecksSparseTensorsByTheirValues) {
  const at::Tensor indices = at::tensor({0, 1, 1, 0}, at::kLong).view({2, 2});
  const at::Tensor coo = at::sparse_coo_tensor(indices, at::tensor({1.0, kNaN}), {2, 2});
  EXPECT_FALSE(check_finite(coo).finite);
  EXPECT_FALSE(
      check_finite(at::eye(3).index_put_({at::tensor({1}), at::tensor({1})}, at::full({1}, kInf)).to_sparse_csr())
          .finite);
  EXPECT_TRUE(check_finite(at::eye(3).to_sparse_csr()).finite);
}

TEST(CheckFinite, ChecksNestedTensorsByTheirBuffer) {
  const at::Tensor nested = at::_nested_tensor_from_tensor_list({at::ones({2}), at::full({3}, kNaN)});
  EXPECT_FALSE(check_finite(nested).finite);
}

TEST(CheckFinite, SkipsTensorsWithoutNumbers) {
  EXPECT_EQ(check_finite(at::ones({2}, at::kLong)).skip, Skip::kNotFloating);
  EXPECT_EQ(check_finite(at::ones({2}, at::TensorOptions(at::kMeta))).skip, Skip::kMeta);
  EXPECT_EQ(check_finite(at::quantize_per_tensor(at::ones({2}), 0.1, 0, at::kQInt8)).skip, Skip::kQuantized);
  EXPECT_EQ(check_finite(at::_efficientzerotensor({2})).skip, Skip::kZeroTensor);
  EXPECT_EQ(check_finite(at::ones({2, 2}).to_mkldnn()).skip, Skip::kOpaque);
  at::Tensor freed = at::ones({4});
  freed.storage().unsafeGetStorageImpl()->reset();
  EXPECT_EQ(check_finite(freed).skip, Skip::kUnallocated);
}

TEST(CheckFinite, LeavesCopyOnWriteStorageShared) {
  const at::Tensor t = at::ones({4});
  const at::Tensor lazy = at::_lazy_clone(t);
  const void* before = lazy.const_data_ptr();
  EXPECT_TRUE(check_finite(lazy).finite);
  EXPECT_EQ(lazy.const_data_ptr(), before);
  EXPECT_EQ(lazy.const_data_ptr(), t.const_data_ptr());
}

}  // namespace
}  // namespace torchnan
