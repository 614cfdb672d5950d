#include "report/finding_log.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

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

struct EndingSink final : Sink {
  EndingSink(std::vector<Finding>& again, int64_t& dropped) : again_(again), dropped_(dropped) {}
  void emit(const Finding&) override {}
  void end(const std::vector<Finding>& found_again, int64_t dropped) override {
    again_ = found_again;
    dropped_ = dropped;
  }
  std::vector<Finding>& again_;
  int64_t& dropped_;
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

Finding finding_in(const std::string& parameter, const std::string& op = "aten::div") {
  Finding finding = finding_of(op);
  finding.harm = {HarmKind::kParameter, parameter};
  return finding;
}

TEST(FindingLog, NamesTheTensorsOfOneLineInOneFinding) {
  FindingLog log(10, [](const std::exception_ptr&) {});
  EXPECT_TRUE(log.add(finding_in("0.weight")));
  for (const char* other : {"0.bias", "1.weight", "0.bias", "0.weight"}) EXPECT_FALSE(log.add(finding_in(other)));
  ASSERT_EQ(log.findings().size(), 1u);
  EXPECT_EQ(log.findings()[0].others, (std::vector<std::string>{"0.bias", "1.weight"}));
  EXPECT_EQ(log.findings()[0].repeats, 2);
}

TEST(FindingLog, HoldsABoundedNumberOfNames) {
  FindingLog log(10, [](const std::exception_ptr&) {});
  for (int i = 0; i < 300; ++i) log.add(finding_in(std::to_string(i)));
  EXPECT_EQ(log.findings()[0].others.size(), 256u);
  EXPECT_EQ(log.findings()[0].others_omitted, 300 - 1 - 256);
}

TEST(FindingLog, TellsGuardsAndParametersWithoutALineApart) {
  FindingLog log(10, [](const std::exception_ptr&) {});
  Finding finding = finding_in("here");
  finding.harm.kind = HarmKind::kGuard;
  EXPECT_TRUE(log.add(finding));
  finding.harm.name = "there";
  EXPECT_TRUE(log.add(finding));
  finding = finding_in("0.weight");
  finding.stack.clear();
  EXPECT_TRUE(log.add(finding));
  finding.harm.name = "0.bias";
  EXPECT_TRUE(log.add(finding));
}

TEST(FindingLog, KeepsAnotherLineWhenOneHasUsedUpTheRoom) {
  FindingLog log(2, [](const std::exception_ptr&) {});
  Finding finding = finding_of("aten::log");
  for (const char* module : {"0", "1", "2", "3"}) {
    finding.module = module;
    log.add(finding);
  }
  EXPECT_EQ(log.dropped(), 2);
  EXPECT_TRUE(log.add(finding_of("aten::log", 2)));
  EXPECT_FALSE(log.add(finding_of("aten::log", 3)));
  EXPECT_EQ(log.findings().size(), 3u);
  EXPECT_EQ(log.dropped(), 3);
}

TEST(FindingLog, CountsFindingsThatItDoesNotKeep) {
  FindingLog log(2, [](const std::exception_ptr&) {});
  for (int line = 1; line <= 5; ++line) log.add(finding_of("aten::log", line));
  EXPECT_EQ(log.findings().size(), 2u);
  EXPECT_EQ(log.dropped(), 3);
}

TEST(FindingLog, TellsSinksAtTheEndWhatWasFoundAgainAndNotKept) {
  std::vector<Finding> again;
  int64_t dropped = 0;
  FindingLog log(2, [](const std::exception_ptr&) {});
  log.add_sink(std::make_unique<EndingSink>(again, dropped));
  for (int line = 1; line <= 4; ++line) log.add(finding_of("aten::log", line));
  log.add(finding_of("aten::log", 2));
  log.end();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].stack[0].line, 2);
  EXPECT_EQ(again[0].repeats, 1);
  EXPECT_EQ(dropped, 2);
  again.clear();
  log.end();
  EXPECT_TRUE(again.empty());
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
