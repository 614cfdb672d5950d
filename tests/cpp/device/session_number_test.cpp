#include "device/session_number.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "detection/session.h"

namespace torchnan {
namespace {

TEST(SessionNumber, StandsForItsSession) {
  EXPECT_EQ(SessionNumber().lock(), nullptr);
  const auto first = std::make_shared<DetectionSession>(Options{});
  const auto second = std::make_shared<DetectionSession>(Options{});
  const SessionNumber of_first(*first);
  const SessionNumber of_second(*second);
  EXPECT_EQ(of_first.lock(), first);
  EXPECT_EQ(of_second.lock(), second);
  EXPECT_EQ(SessionNumber(*first).lock(), first);
}

// Many, so that some lie at the address of one before.
TEST(SessionNumber, KeepsNothingAliveAndStandsForNoOther) {
  std::vector<SessionNumber> gone;
  for (int i = 0; i < 20; ++i) {
    const auto session = std::make_shared<DetectionSession>(Options{});
    gone.emplace_back(*session);
    EXPECT_EQ(session.use_count(), 1);
    EXPECT_EQ(gone.back().lock(), session);
  }
  for (const SessionNumber& one : gone) EXPECT_EQ(one.lock(), nullptr);
}

}  // namespace
}  // namespace torchnan
