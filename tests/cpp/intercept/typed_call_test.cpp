#include "intercept/typed_call.h"

#include <cstdlib>
#include <functional>
#include <new>
#include <tuple>
#include <utility>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <torchnan/detector.h>

#include "bounds/bound_cache.h"

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
  EXPECT_EQ(added_allocations([&] { at::log1p(x); }), 1);
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

// Fails when: a small call takes over what it should leave to others, or the other way round.
TEST(TypedCall, CountsTheSameForAnySize) {
  const auto counts_of = [](int64_t size) {
    const at::Tensor x = at::rand({size, size});
    const Detector detector;
    x.mul_(0.5).add_(x);
    at::mm(x, x).sqrt().sum().item();
    const Stats stats = detector.stats();
    return std::tuple(stats.ops, stats.checked, stats.nonfinite);
  };
  EXPECT_EQ(counts_of(4), counts_of(100));
}

}  // namespace
}  // namespace torchnan
