// Which element of which argument a bad element comes from, against a walk from element to element.
#include "origin/elementwise_attribution.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

namespace torchnan {
namespace {

NonfiniteKinds kind_at(const at::Tensor& element) {
  const double value = element.item<double>();
  if (std::isnan(value)) return NonfiniteKinds::only_nan();
  if (!std::isinf(value)) return {};
  return value > 0 ? NonfiniteKinds::only_posinf() : NonfiniteKinds::only_neginf();
}

// The definition, in the words of ElementAttribution.
ElementAttribution reference(const at::Tensor& result, const std::vector<at::Tensor>& values,
                             const std::vector<bool>& by_accident) {
  ElementAttribution verdict;
  verdict.inherited.resize(values.size());
  const at::Tensor flat = result.reshape({-1});
  std::vector<at::Tensor> expanded;
  for (const at::Tensor& one : values) expanded.push_back(one.expand(result.sizes()).reshape({-1}));
  for (int64_t e = 0; e < flat.numel(); ++e) {
    const NonfiniteKinds kinds = kind_at(flat[e]);
    NonfiniteKinds given;
    NonfiniteKinds accidents;
    for (size_t i = 0; i < values.size(); ++i) {
      given |= kind_at(expanded[i][e]);
      if (by_accident[i]) accidents |= kind_at(expanded[i][e]);
    }
    if (!given.any() || (kinds.nan() && !given.nan() && !accidents.any())) {
      verdict.own |= kinds;
      continue;
    }
    for (size_t i = 0; i < values.size(); ++i) {
      if (kind_at(expanded[i][e]).any()) verdict.inherited[i] |= kinds;
    }
  }
  return verdict;
}

class Trial {
 public:
  explicit Trial(uint64_t seed) : random_(seed) {
    const c10::ScalarType dtypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};
    dtype_ = dtypes[below(4)];
    for (int64_t d = below(4); d > 0; --d) sizes_.push_back(1 + below(d == 1 ? 40 : 6));
    if (below(6) == 0) sizes_ = {3, 1500};  // longer than a block
    result = tensor(sizes_);
    for (int64_t i = 1 + below(3); i > 0; --i) add_argument();
  }

  at::Tensor result;
  std::vector<at::Tensor> values;  // of the arguments, before the operation
  std::vector<Candidate> candidates;
  std::vector<bool> by_accident;

 private:
  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  // With a few bad elements, many, or none, in one of several layouts.
  at::Tensor tensor(std::vector<int64_t> sizes) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double bad[] = {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity};
    at::Tensor made = at::zeros(sizes, dtype_);
    if (made.dim() > 1 && below(3) == 0) made = at::zeros_like(made.transpose(0, -1)).transpose(0, -1);
    if (made.dim() > 0 && below(3) == 0) made = at::zeros(sizes, dtype_).repeat_interleave(2, -1).slice(-1, 0, {}, 2);
    at::Tensor values = at::zeros({made.numel()}, dtype_);
    const int64_t rarity = 1 + below(6);
    for (int64_t e = 0; e < values.numel(); ++e) {
      if (below(rarity) == 0 && rarity < 6) values[e] = bad[below(3)];
    }
    made.copy_(values.reshape(made.sizes()));
    return made;
  }

  void add_argument() {
    std::vector<int64_t> sizes = sizes_;
    for (int64_t& size : sizes) size = below(4) == 0 ? 1 : size;
    while (!sizes.empty() && below(8) == 0) sizes.erase(sizes.begin());
    at::Tensor argument = tensor(sizes);
    values.push_back(argument.clone());
    by_accident.push_back(below(2) == 0);
    const bool is_overwritten = argument.sizes() == result.sizes() && below(2) == 0;
    const auto before = is_overwritten ? kinds_by_element(argument) : nullptr;
    if (is_overwritten) argument.zero_();
    candidates.push_back({argument, before, by_accident.back()});
  }

  std::mt19937_64 random_;
  c10::ScalarType dtype_;
  std::vector<int64_t> sizes_;
};

TEST(ElementwiseAttribution, AgreesWithAWalkFromElementToElement) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Trial trial(seed);
    const ElementAttribution found = attribute_by_element(trial.result, trial.candidates);
    const ElementAttribution expected = reference(trial.result, trial.values, trial.by_accident);
    EXPECT_EQ(found.own, expected.own);
    EXPECT_EQ(found.inherited, expected.inherited);
    if (HasFailure()) return;
  }
}

TEST(ElementwiseAttribution, LeavesOutArgumentsOfAnotherShape) {
  const at::Tensor nan = at::full({4}, std::numeric_limits<double>::quiet_NaN());
  const ElementAttribution found = attribute_by_element(nan, {{at::full({3}, NAN), nullptr, true}});
  EXPECT_EQ(found.own, NonfiniteKinds::only_nan());
  EXPECT_FALSE(found.inherited[0].any());
}

TEST(ElementwiseAttribution, CountsComplexElementsByBothParts) {
  const at::Tensor result = at::zeros({2, 3}, at::kComplexFloat);
  at::real(result).select(1, 0).fill_(NAN);
  at::imag(result).select(1, 1).fill_(INFINITY);
  const ElementAttribution found = attribute_by_element(result, {{result.clone(), nullptr, true}});
  EXPECT_FALSE(found.own.any());
  EXPECT_EQ(found.inherited[0], NonfiniteKinds::only_nan() | NonfiniteKinds::only_posinf());
}

}  // namespace
}  // namespace torchnan
