#include "report/finding_log.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace torchnan {
namespace {

Finding finding_of(const std::string& op, int64_t line = 1) {
  Finding finding;
  finding.op = op;
  finding.stack.push_back({"train.py", line, "main"});
  return finding;
}

struct CountingSink final : Sink {
  explicit CountingSink(int& emitted) : emitted_(emitted) {}
  void emit(const Finding&) override { ++emitted_; }
  int& emitted_;
};

struct FailingSink final : Sink {
  void emit(const Finding&) override { throw std::runtime_error("disk full"); }
};

TEST(FindingLog, FoldsRepeatsOfOneOrigin) {
  FindingLog log(10, [](const std::exception_ptr&) {});
  EXPECT_TRUE(log.add(finding_of("aten::log")));
  EXPECT_FALSE(log.add(finding_of("aten::log")));
  EXPECT_TRUE(log.add(finding_of("aten::log", 2)));
  const auto findings = log.findings();
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_EQ(findings[0].repeats, 1);
  EXPECT_EQ(log.repeats(), 1);
}

TEST(FindingLog, CountsFindingsThatItDoesNotKeep) {
  FindingLog log(2, [](const std::exception_ptr&) {});
  for (int line = 1; line <= 5; ++line) log.add(finding_of("aten::log", line));
  EXPECT_EQ(log.findings().size(), 2u);
  EXPECT_EQ(log.dropped(), 3);
}

TEST(FindingLog, CallsEverySinkOnceEvenIfOneFails) {
  int emitted = 0;
  std::vector<std::exception_ptr> errors;
  FindingLog log(10, [&](const std::exception_ptr& error) { errors.push_back(error); });
  log.add_sink(std::make_unique<FailingSink>());
  log.add_sink(std::make_unique<CountingSink>(emitted));
  log.add(finding_of("aten::log"));
  log.add(finding_of("aten::log"));
  EXPECT_EQ(emitted, 1);
  EXPECT_EQ(log.log_failures(), 1);
  ASSERT_EQ(errors.size(), 1u);
  EXPECT_THROW(std::rethrow_exception(errors[0]), std::runtime_error);
}

}  // namespace
}  // namespace torchnan
