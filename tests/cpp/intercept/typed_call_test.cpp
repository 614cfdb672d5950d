#include "intercept/typed_call.h"

#include <cstdlib>
#include <functional>
#include <new>
#include <tuple>
#include <utility>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <torchnan/detector.h>

#include "check/bounds/bound_cache.h"

namespace {
thread_local int64_t allocations = 0;
}

[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace torchnan {
namespace {

int64_t allocations_of(const std::function<void()>& run) {
  const int64_t before = allocations;
  run();
  return allocations - before;
}

// How many more there are while detection is on.
int64_t added_allocations(const std::function<void()>& run, Options options = {}) {
  run();
  const int64_t plain = allocations_of(run);
  Detector detector(std::move(options));
  run();
  run();
  return allocations_of(run) - plain;
}

class HealthyPath : public testing::TestWithParam<int64_t> {};

TEST_P(HealthyPath, AllocatesNothing) {
  const at::Tensor x = at::randn({GetParam(), GetParam()});
  const at::Tensor y = at::rand({GetParam(), GetParam()});
  EXPECT_EQ(added_allocations([&] {
              x.mul_(y).add_(y, 0.25);
              at::mm(x, y).tanh().sum();
              y.sqrt().sub(y);
            }),
            0);
}

// Fails when a result takes a separate entry in the table.
TEST_P(HealthyPath, AllocatesNothingForHeadroom) {
  const at::Tensor x = at::randn({GetParam(), GetParam()}, at::kHalf);
  Options options;
  options.headroom = true;
  EXPECT_EQ(added_allocations([&] { at::mm(x, x).tanh().add(x); }, options), 0);
}

TEST_P(HealthyPath, OfABoxedCallPyTorchAllocatesTheStack) {
  const at::Tensor x = at::rand({GetParam(), GetParam()});
  EXPECT_EQ(added_allocations([&] { at::expm1(x); }), 1);
}

// Fails when: one of these is boxed although its tensors are small.
TEST(SmallCalls, AllocateNothing) {
  const at::Tensor x = at::rand({4, 4}), index = at::zeros({4, 4}, at::kLong);
  EXPECT_EQ(added_allocations([&] {
              at::cat({x, x});
              at::stack({x, x}).log1p();
              at::where(x.gt(0.5).logical_not(), x, x.clamp(0.1, 0.9));
              std::get<0>(x.max(1)).expand({4, 4});
              at::gather(x, 1, index).eq(x).all();
              at::zeros({4}).fill_(1.0);
              x.to(at::kDouble);
            }),
            0);
}

INSTANTIATE_TEST_SUITE_P(Sizes, HealthyPath, testing::Values(4, 100));

TEST(TypedCall, ExplainsAsTheBoxedOneDoes) {
  Options options;
  options.action = Action::kLog;
  Detector detector(options);
  const at::Tensor zero = at::zeros({50, 50});
  const at::Tensor quotient = at::div(zero, zero);  // typed
  EXPECT_EQ(detector.stats().nonfinite, 1);         // counted once
  EXPECT_TRUE(std::isnan(quotient.sum().item<float>()));
  ASSERT_EQ(detector.findings().size(), 1u);
  const Finding finding = detector.findings()[0];
  EXPECT_EQ(finding.op, "aten::div");
  EXPECT_EQ(finding.nan, 2500);
  ASSERT_EQ(finding.inputs.size(), 2u);
  EXPECT_EQ(finding.inputs[0].name, "other");  // the hint is about it
  EXPECT_EQ(finding.inputs[1].name, "self");
}

// Fails when: the results that a small call has checked are checked, and counted, once more.
TEST(TypedCall, AttributesTheSecondResultOfASmallCall) {
  Options options;
  options.action = Action::kLog;
  Detector detector(options);
  const at::Tensor input = at::randn({2, 4});
  const auto [mean, rstd] = std::pair(at::zeros({2, 1}), at::ones({2, 1}));
  const at::Tensor upstream = at::full({2, 4}, 3e38), weight = at::zeros({4}), bias = at::zeros({4});
  const int64_t checked = detector.stats().checked;
  const auto [of_input, of_weight, of_bias] = at::native_layer_norm_backward(upstream, at::full({2, 4}, 1.0), {4}, mean,
                                                                             rstd, weight, bias, {true, true, true});
  EXPECT_EQ(detector.stats().checked - checked, 4);  // three, and what full() has written
  EXPECT_TRUE(bound_cache().is_finite(of_input));
  EXPECT_FALSE(bound_cache().is_finite(of_weight));
  EXPECT_TRUE(std::isinf(of_weight[0].item<float>()));
  ASSERT_EQ(detector.findings().size(), 1u);
  EXPECT_EQ(detector.findings()[0].op, "aten::native_layer_norm_backward");
  EXPECT_EQ(detector.findings()[0].output, 1);
}

TEST(TypedCall, ForgetsPossibleWritesOfAFailedSmallCall) {
  const Detector detector;
  const at::Tensor target = at::ones({4});
  ASSERT_TRUE(bound_cache().is_finite(target));
  EXPECT_ANY_THROW(target.add_(at::ones({5})));
  EXPECT_FALSE(bound_cache().is_finite(target));
}

// Large calls of these operators are boxed. Fails when the small ones are attributed in another way.
TEST(TypedCall, ExplainsSmallAndLargeCallsAlike) {
  const auto explain = [](int64_t size) {
    Options options;
    options.action = Action::kLog;
    Detector detector(options);
    const at::Tensor zeros = at::zeros({size, size});
    const at::Tensor logarithm = at::log(zeros);
    const at::Tensor joined = at::cat({zeros, logarithm});
    const at::Tensor picked = std::get<0>(joined.min(0));
    EXPECT_TRUE(std::isinf(at::logsumexp(picked.neg(), 0).item<float>()));
    EXPECT_EQ(detector.findings().size(), 1u);
    const Finding finding = detector.findings().at(0);
    return std::tuple(finding.op, finding.output, finding.neginf == size * size, finding.inputs.at(0).name);
  };
  EXPECT_EQ(explain(4), explain(100));
  EXPECT_EQ(std::get<0>(explain(4)), "aten::log");
}

// Fails when a call is small although its result is not: the zeros would be read.
TEST(TypedCall, BoundsALargeResultOfNoTensor) {
  Options options;
  options.rescan_every = 0;
  const Detector detector(options);
  at::zeros({100, 100});
  at::ones({1}).new_zeros({100, 100});
  at::full({100, 100}, 3.0);
  EXPECT_EQ(detector.stats().proved, 3);
}

// Fails when: a small call takes over what it should leave to others, or the other way round.
TEST(TypedCall, CountsTheSameForAnySize) {
  const auto counts_of = [](int64_t size) {
    const at::Tensor x = at::rand({size, size});
    const Detector detector;
    x.mul_(0.5).add_(x);
    at::mm(x, x).sqrt().sum().item();
    at::cat({x, at::zeros({1, size})}).ge(0.5).any();
    at::stack({x.abs(), x.to(at::kHalf).to(at::kFloat)}).cumsum(0);
    std::get<1>(x.max(0)).eq(1);
    const Stats stats = detector.stats();
    return std::tuple(stats.ops, stats.checked, stats.nonfinite);
  };
  EXPECT_EQ(counts_of(4), counts_of(100));
}

}  // namespace
}  // namespace torchnan
