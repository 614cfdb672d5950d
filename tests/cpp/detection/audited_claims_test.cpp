// Which proofs are tested by a scan.
#include "detection/audited_claims.h"

#include <gtest/gtest.h>

namespace torchnan {
namespace {

constexpr double kLimit = 0x1p126, kFar = 1;
constexpr int kOperator = 17, kOther = 18;

FinitenessClaim claim(int op, double max_abs, bool has_turn = false, int64_t place = 0) {
  return {.operator_index = op, .max_abs = max_abs, .limit = kLimit, .place = place, .has_turn = has_turn};
}

class AuditedClaims : public ::testing::Test {
 protected:
  void SetUp() override { forget_audited_claims(); }
};

TEST_F(AuditedClaims, ThoseFarFromTheLimitHaveTheirTurns) {
  EXPECT_FALSE(is_near_limit(kFar, kLimit));
  EXPECT_FALSE(choose_for_audit(claim(kOperator, kFar)));
  EXPECT_TRUE(choose_for_audit(claim(kOperator, kFar, true)));
}

TEST_F(AuditedClaims, TheFirstOfAnOperatorSoCloseToTheLimitDoesNotWait) {
  EXPECT_TRUE(is_near_limit(0x1p100, kLimit));
  EXPECT_TRUE(choose_for_audit(claim(kOperator, 0x1p100)));
  EXPECT_FALSE(choose_for_audit(claim(kOperator, 0x1p100)));
  EXPECT_TRUE(choose_for_audit(claim(kOperator, 0x1p125)));
  EXPECT_TRUE(choose_for_audit(claim(kOther, 0x1p125)));
  EXPECT_FALSE(choose_for_audit(claim(kOperator, 0x1p125)));
}

TEST_F(AuditedClaims, AResultThatDidNotWaitMissesItsNextTurnAndNoOtherDoes) {
  EXPECT_TRUE(choose_for_audit(claim(kOperator, 0x1p125, false, 7)));
  EXPECT_TRUE(choose_for_audit(claim(kOperator, 0x1p125, true, 6)));
  EXPECT_TRUE(choose_for_audit(claim(kOther, kFar, true, 8)));
  EXPECT_FALSE(choose_for_audit(claim(kOperator, 0x1p125, true, 7)));
  EXPECT_TRUE(choose_for_audit(claim(kOperator, 0x1p125, true, 7)));
}

TEST_F(AuditedClaims, NoTurnIsMissedInAFirstStep) {
  EXPECT_TRUE(choose_for_audit(claim(kOperator, 0x1p125, false, 7)));
  FinitenessClaim first = claim(kOperator, 0x1p125, true, 7);
  first.is_in_first_step = true;
  EXPECT_TRUE(choose_for_audit(first));
}

TEST_F(AuditedClaims, AnOperatorWithoutAnIndexHasItsTurns) {
  EXPECT_FALSE(choose_for_audit(claim(-1, 1)));
  EXPECT_TRUE(choose_for_audit(claim(-1, 1, true)));
}

}  // namespace
}  // namespace torchnan
