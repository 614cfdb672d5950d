// A product that is subnormal is off by a step, however small it is; a third factor or a divisor makes that larger.
#include <torchnan/torchnan.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "check/bounds/bound_audit.h"

namespace torchnan {
namespace {

constexpr double kStep = 0x1p-149;  // the smallest float
constexpr int64_t kMean = 1;

at::Tensor floats(at::IntArrayRef shape, double value) { return at::full(shape, value); }

// Every operation of the program is bounded by its rule, and then scanned.
template <typename Program>
void expect_that_the_claim_holds(const std::string& op, Program&& program) {
  Options options;
  options.action = Action::kLog;
  options.rescan_every = 1;
  bound_audit().enable(true);
  {
    Detector detector(options);
    program();
  }
  size_t claims = 0;
  for (const BoundSample& claim : bound_audit().drain()) {
    if (claim.op != op || claim.bound > claim.limit) continue;
    ++claims;
    EXPECT_LE(claim.max_abs, claim.bound) << op;
  }
  bound_audit().enable(false);
  EXPECT_GT(claims, 0U) << op;
}

TEST(SubnormalProducts, MayBeDivided) {
  expect_that_the_claim_holds(
      "aten::addcdiv", [] { at::addcdiv(floats({300}, 0), floats({300}, 3 * kStep), floats({300}, 1e-10), 0.5); });
}

TEST(SubnormalProducts, MayBeMultiplied) {
  expect_that_the_claim_holds(
      "aten::addcmul", [] { at::addcmul(floats({300}, 0), floats({300}, 3 * kStep), floats({300}, 1e30), 0.5); });
  expect_that_the_claim_holds(
      "aten::addcmul", [] { at::addcmul(floats({300}, 0), floats({300}, 1e30), floats({300}, 3 * kStep), 0.5); });
}

TEST(SubnormalProducts, MayBeScaledBySomeAlpha) {
  expect_that_the_claim_holds(
      "aten::addr", [] { at::addr(floats({20, 20}, 0), floats({20}, 3 * kStep), floats({20}, 1e30), 0, 0.5); });
}

TEST(SubnormalProducts, MayBeWeighted) {
  expect_that_the_claim_holds("aten::nll_loss_backward", [] {
    const at::Tensor target = at::zeros({30}, at::kLong);
    at::nll_loss_backward(floats({}, 3 * kStep), floats({30, 12}, 1), target, floats({12}, 1e30), kMean, -100,
                          floats({}, 2));
  });
}

TEST(SubnormalProducts, MayBeTheScaleOfANormalization) {
  expect_that_the_claim_holds("aten::native_batch_norm", [] {
    at::native_batch_norm(floats({40, 10}, 1e20), floats({10}, 1.6 * kStep / 1e-15), floats({10}, 0), floats({10}, 0),
                          floats({10}, 1e30), false, 0.1, 0);
  });
}

// r is within 1e-12 by eps; the deviation that becomes a result of sqrt(n) is that of one element of many.
TEST(SubnormalProducts, MayBeTheScaleOfANormalizationInTraining) {
  expect_that_the_claim_holds("aten::native_batch_norm", [] {
    at::Tensor x = at::zeros({100, 10});
    x.select(0, 0).fill_(1e14);
    at::native_batch_norm(x, floats({10}, 1.6 * kStep * 1e13), floats({10}, 0), {}, {}, true, 0.1, 1e24);
  });
}

}  // namespace
}  // namespace torchnan
