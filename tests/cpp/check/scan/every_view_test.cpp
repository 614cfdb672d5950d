// Tensors of every dtype, as any strided view shows them, against a walk from element to element.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "origin/elementwise_attribution.h"
#include "check/scan/tensor_scan.h"
#include "support/with_isa.h"

namespace torchnan {
namespace {

constexpr c10::ScalarType kDtypes[] = {
    c10::kHalf,          c10::kBFloat16,        c10::kFloat,           c10::kDouble,
    c10::kComplexHalf,   c10::kComplexFloat,    c10::kComplexDouble,   c10::kFloat8_e5m2,
    c10::kFloat8_e4m3fn, c10::kFloat8_e5m2fnuz, c10::kFloat8_e4m3fnuz, c10::kFloat8_e8m0fnu,
};

// The result of a scalar loop over a tensor.
struct Reference {
  TensorStats stats;
  NonfiniteKinds kinds;
  Counts words;
  std::vector<NonfiniteKinds> by_element;
};

void take(double part, Reference& reference, NonfiniteKinds& of_element) {
  Tally& tally = reference.stats.tally;
  if (std::isnan(part)) {
    ++reference.words.nan;
    of_element |= NonfiniteKinds::only_nan();
  } else if (std::isinf(part)) {
    ++(part > 0 ? reference.words.posinf : reference.words.neginf);
    of_element |= part > 0 ? NonfiniteKinds::only_posinf() : NonfiniteKinds::only_neginf();
  } else {
    tally.min = std::min(tally.min.value_or(part), part);
    tally.max = std::max(tally.max.value_or(part), part);
    tally.absmax = std::max(tally.absmax.value_or(0), std::abs(part));
  }
}

// With the sign of the first infinite part.
void count_element(const double* parts, NonfiniteKinds kinds, const std::vector<int64_t>& index, Reference& reference) {
  Tally& tally = reference.stats.tally;
  if (!kinds.any()) return;
  if (tally.nonfinite() == 0) reference.stats.first_index = index;
  if (kinds.nan()) {
    ++tally.nan;
  } else {
    ++((std::isinf(parts[0]) ? parts[0] : parts[1]) > 0 ? tally.posinf : tally.neginf);
  }
}

Reference walk(const at::Tensor& tensor) {
  Reference reference;
  const FloatFormat format = *float_format(tensor.scalar_type());
  const auto* base = static_cast<const uint8_t*>(tensor.const_data_ptr());
  std::vector<int64_t> index(tensor.dim(), 0);
  for (int64_t left = tensor.numel(); left > 0; --left) {
    int64_t offset = 0;
    for (int64_t d = 0; d < tensor.dim(); ++d) offset += index[d] * tensor.stride(d);
    double parts[2] = {};
    NonfiniteKinds kinds;
    for (int p = 0; p < format.words_per_element; ++p) {
      uint64_t bits = 0;
      std::memcpy(&bits, base + offset * format.element_bytes() + p * format.word_bytes, format.word_bytes);
      parts[p] = value_of(c10::toRealValueType(tensor.scalar_type()), bits);
      take(parts[p], reference, kinds);
    }
    count_element(parts, kinds, index, reference);
    reference.by_element.push_back(kinds);
    reference.kinds |= kinds;
    for (int64_t d = tensor.dim(); d-- > 0 && ++index[d] == tensor.size(d);) index[d] = 0;
  }
  return reference;
}

void expect_equal(const Tally& a, const Tally& b) {
  EXPECT_EQ(a.nan, b.nan);
  EXPECT_EQ(a.posinf, b.posinf);
  EXPECT_EQ(a.neginf, b.neginf);
  EXPECT_EQ(a.min, b.min);
  EXPECT_EQ(a.max, b.max);
  EXPECT_EQ(a.absmax, b.absmax);
}

bool shows_each_element_once(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() || tensor.numel() == 1;
}

void expect_all(const at::Tensor& tensor) {
  const Reference reference = walk(tensor);
  const ScanResult verdict = check_finite(tensor);
  EXPECT_EQ(verdict.skip, tensor.numel() == 0 ? Skip::kEmpty : Skip::kNone);
  EXPECT_EQ(verdict.finite, !reference.kinds.any());
  EXPECT_EQ(kinds_of(tensor), reference.kinds);
  const TensorStats stats = compute_stats(tensor);
  expect_equal(stats.tally, reference.stats.tally);
  EXPECT_EQ(stats.first_index, reference.stats.first_index);
  if (shows_each_element_once(tensor)) {
    const Counts words = counts_of(tensor);
    EXPECT_EQ(words.nan, reference.words.nan);
    EXPECT_EQ(words.posinf, reference.words.posinf);
    EXPECT_EQ(words.neginf, reference.words.neginf);
  }
  if (tensor.numel() == 0) return;
  EXPECT_EQ(*kinds_by_element(tensor), reference.by_element);
  const bool has_bounds = std::isfinite(verdict.max_abs);
  if (verdict.finite && has_bounds) {
    EXPECT_EQ(verdict.max_abs, reference.stats.tally.absmax);
  }
  if (const auto smallest = smallest_of(tensor)) {
    EXPECT_EQ(smallest->value, reference.stats.tally.min);
  }
}

// Memory, some of it bad, and a view of it.
class Trial {
 public:
  Trial(c10::ScalarType dtype, uint64_t seed) : dtype_(dtype), random_(seed) {
    std::vector<int64_t> sizes(below(5));
    std::vector<int64_t> strides(sizes.size());
    int64_t span = 1;
    for (size_t d = 0; d < sizes.size(); ++d) {
      sizes[d] = below(20) == 0 ? 0 : 1 + below(5);
      strides[d] = below(4) == 0 ? 0 : below(2) == 0 ? span : below(12);  // expanded, dense, overlapping
      span += std::max<int64_t>(0, sizes[d] - 1) * strides[d];
    }
    const int64_t offset = below(20);
    fill(span + offset);
    const auto elements = at::from_blob(memory_.data(), {span + offset}, at::TensorOptions(dtype));
    view_ = elements.as_strided(sizes, strides, offset);
    if (below(3) == 0 && view_.dim() > 1) view_ = view_.transpose(0, -1);
  }

  const at::Tensor& view() const { return view_; }

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  void fill(int64_t elements) {
    const FloatFormat format = *float_format(dtype_);
    memory_.resize(elements * format.element_bytes());
    for (auto& byte : memory_) byte = static_cast<uint8_t>(random_()) & 0x3b;
    const int64_t words = elements * format.words_per_element;
    for (int64_t bad = below(4); bad > 0; --bad) {
      const uint64_t spellings[] = {format.first_nan - format.bias, format.infinity - format.bias,
                                    (format.infinity - format.bias) | ~format.mask};
      std::memcpy(memory_.data() + below(words) * format.word_bytes, &spellings[below(3)], format.word_bytes);
    }
  }

  const c10::ScalarType dtype_;
  std::mt19937_64 random_;
  std::vector<uint8_t> memory_;
  at::Tensor view_;
};

void try_views(c10::ScalarType dtype, uint64_t trials) {
  for (uint64_t seed = 0; seed < trials; ++seed) {
    const Trial trial(dtype, seed);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << trial.view().sizes() << trial.view().strides()
                                    << " at " << trial.view().storage_offset());
    expect_all(trial.view());
    if (testing::Test::HasFailure()) return;
  }
}

class EveryView : public testing::TestWithParam<c10::ScalarType> {};

TEST_P(EveryView, FindsExactlyTheValuesOfTheView) { try_views(GetParam(), 1000); }

class LongEveryView : public EveryView {};

TEST_P(LongEveryView, FindsExactlyTheValuesOfTheView) { try_views(GetParam(), 100'000); }

std::string dtype_name(const testing::TestParamInfo<c10::ScalarType>& test) { return c10::toString(test.param); }

INSTANTIATE_TEST_SUITE_P(EveryDtype, EveryView, testing::ValuesIn(kDtypes), dtype_name);
INSTANTIATE_TEST_SUITE_P(Long, LongEveryView, testing::ValuesIn(kDtypes), dtype_name);

}  // namespace
}  // namespace torchnan
