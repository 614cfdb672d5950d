#include "device/scanner.h"

#include <gtest/gtest.h>

#include "device/cuda/scan_library.h"
#include "device/lagging_device.h"

namespace torchnan {
namespace {

void forget_scanners() {
  Scanner::forget_after_fork();
  lagging::plug_into_torchnan();
}

TEST(Scanner, IsMadeLaterIfMemoryWasLacking) {
  forget_scanners();
  lagging::fail_next_scanner(TORCHNAN_OUT_OF_MEMORY);
  EXPECT_EQ(Scanner::of(lagging::device(1)), nullptr);
  EXPECT_EQ(Scanner::unavailable_reason(lagging::device(1)), "an error of the lagging device");
  Scanner* made = nullptr;
  for (int request = 0; made == nullptr && request < 1000; ++request) made = Scanner::of(lagging::device(1));
  EXPECT_NE(made, nullptr);
  EXPECT_EQ(Scanner::unavailable_reason(lagging::device(1)), "");
}

TEST(Scanner, IsNotTriedAgainAfterAnotherError) {
  forget_scanners();
  lagging::fail_next_scanner(1);
  for (int request = 0; request < 1000; ++request) ASSERT_EQ(Scanner::of(lagging::device(1)), nullptr);
  forget_scanners();
}

TEST(Scanner, ScansADeviceWithoutAKernelByOperations) {
  forget_scanners();
  lagging::plug_into_torchnan(/*by_kernel=*/false);
  EXPECT_EQ(Scanner::name_of(lagging::device(1)), "operations of PyTorch");
  forget_scanners();
}

TEST(Scanner, ARefusedResetLeavesTheAlarmUp) {
  lagging::plug_into_torchnan();
  Scanner& scanner = *Scanner::of(lagging::device());
  lagging::refuse_resets(1);
  EXPECT_THROW(scanner.reset_alarm(7), std::runtime_error);
  scanner.reset_alarm(7);
  lagging::run_all();
  EXPECT_FALSE(scanner.is_lost());
  lagging::break_device(true);
  scanner.reset_alarm(7);
  EXPECT_TRUE(scanner.is_lost());
  cuda::Slot slot{};
  EXPECT_FALSE(scanner.read(0, 1, &slot));
  lagging::break_device(false);
  EXPECT_TRUE(scanner.read(0, 1, &slot));
}

}  // namespace
}  // namespace torchnan
