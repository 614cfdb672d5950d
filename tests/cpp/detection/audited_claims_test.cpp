// Which proofs are tested by a scan.
#include "detection/audited_claims.h"

#include <gtest/gtest.h>

namespace torchnan {
namespace {

constexpr double kLimit = 0x1p126, kFar = 1;
constexpr int kOperator = 17, kOther = 18;

FinitenessClaim claim(int op, double max_abs, bool has_turn = false) {
  return {.operator_index = op, .max_abs = max_abs, .limit = kLimit, .bytes = 100, .has_turn = has_turn};
}

class AuditedClaims : public ::testing::Test {
 protected:
  void SetUp() override {
    forget_audited_claims();
    FinitenessClaim first = claim(kOther, kFar, true);  // nothing is owed in a first step
    first.is_in_first_step = true;
    choose_for_audit(first);
  }
};

TEST_F(AuditedClaims, ThoseFarFromTheLimitHaveTheirTurns) {
  EXPECT_FALSE(choose_for_audit(claim(kOperator, kFar)));
  EXPECT_TRUE(choose_for_audit(claim(kOperator, kFar, true)));
}

TEST_F(AuditedClaims, TheFirstOfAnOperatorSoCloseToTheLimitDoesNotWait) {
  EXPECT_TRUE(choose_for_audit(claim(kOperator, 0x1p100)));
  EXPECT_FALSE(choose_for_audit(claim(kOperator, 0x1p100)));
  EXPECT_TRUE(choose_for_audit(claim(kOperator, 0x1p125)));
  EXPECT_TRUE(choose_for_audit(claim(kOther, 0x1p125)));
  EXPECT_FALSE(choose_for_audit(claim(kOperator, 0x1p125)));
}

TEST_F(AuditedClaims, ThoseOfKnownKindsMissTurnsForTheBytesThatAreOwed) {
  EXPECT_TRUE(choose_for_audit(claim(kOther, kFar, true)));
  choose_for_audit(claim(kOperator, 0x1p100));
  choose_for_audit(claim(kOperator, 0x1p125));
  EXPECT_FALSE(choose_for_audit(claim(kOther, kFar, true)));
  EXPECT_TRUE(choose_for_audit(claim(kOperator, 0x1p125, true)));  // of a kind that was tested once
  EXPECT_FALSE(choose_for_audit(claim(kOther, kFar, true)));
  EXPECT_TRUE(choose_for_audit(claim(kOther, kFar, true)));
}

TEST_F(AuditedClaims, AnOperatorWithoutAnIndexHasItsTurns) {
  EXPECT_FALSE(choose_for_audit(claim(-1, 1)));
  EXPECT_TRUE(choose_for_audit(claim(-1, 1, true)));
}

}  // namespace
}  // namespace torchnan
