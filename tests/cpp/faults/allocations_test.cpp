// Every allocation of torchnan fails in turn, once and forever: the training continues, with the same weights.
#include <torchnan/torchnan.h>

#include <fcntl.h>
#include <unistd.h>

#include <fstream>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "failing_new.h"
#include "detection/thread_state.h"

namespace torchnan {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// A few good steps, and a few in which NaNs are made, masked, moved, overwritten, read and put into weights. Returns
// everything that it has computed.
std::vector<at::Tensor> train(bool guarded = true) {
  at::manual_seed(0);
  at::Tensor weight = at::randn({80, 80}).requires_grad_();
  at::Tensor bias = at::zeros({80}).requires_grad_();
  std::vector<at::Tensor> results;
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = at::randn({80, 80});
    at::Tensor scores = at::addmm(bias, x, weight).relu();
    if (step > 0) scores = scores.masked_fill(scores > 1e6, -kInf).softmax(-1);
    const at::Tensor y = step == 2 ? (scores - 1).log() : scores.square();  // NaN in the last step
    y.mean().backward();
    const c10::NoGradGuard no_grad;
    weight.sub_(weight.grad(), 0.1);
    bias.sub_(bias.grad(), 0.1);
    results.push_back(y.detach().clone());
    for (at::Tensor* parameter : {&weight, &bias}) parameter->mutable_grad().reset();
  }
  const at::Tensor bad = at::full({8, 8}, -1.0).sqrt();
  if (guarded) guard(at::full({3}, -1.0).rsqrt(), "guarded");  // without a detector it would throw
  results.push_back(at::scalar_tensor(at::full({3}, 2.0).acos().sum().item().toDouble(), at::kDouble));
  const at::Tensor table = at::zeros({8, 8});
  for (int column = 0; column < 8; ++column) table.select(1, column).copy_(bad.select(1, column));
  table.select(1, 0).zero_();
  results.push_back(at::cat({table, bad.t(), bad * 2}));
  results.push_back(at::scalar_tensor(results.back().sum().item().toDouble(), at::kDouble));
  at::Tensor out = at::empty({8, 8});
  at::add_out(out, bad, bad);
  results.push_back(out);
  const std::vector<at::Tensor> many = {at::ones({100, 100}), bad.clone()};
  at::_foreach_mul_(many, 2.0);
  results.insert(results.end(), many.begin(), many.end());
  results.push_back(weight.detach().clone());
  return results;
}

bool same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto words = a[i].scalar_type() == at::kDouble ? at::kLong : at::kInt;
    if (!at::equal(a[i].contiguous().view(words), b[i].contiguous().view(words))) return false;
  }
  return true;
}

// Counts the warnings.
class CountingHandler final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    const bool ours = warning.msg().find("later failures are only counted") != std::string::npos;
    if (ours) said.push_back(warning.msg());
  }
  std::vector<std::string> said;
};

class Allocations : public testing::Test {
 protected:
  Allocations() {
    at::set_num_threads(1);  // thousands of small trainings would wait for their threads
    char made[] = "/tmp/torchnan_faults_XXXXXX";
    folder = mkdtemp(made);
    options.log = folder + "/log.jsonl";
  }
  ~Allocations() override { std::system(("rm -r " + folder).c_str()); }

  int64_t findings_in_log() const {
    std::ifstream file(options.log);
    int64_t count = 0;
    for (std::string line; std::getline(file, line);) {
      EXPECT_TRUE(nlohmann::json::accept(line)) << line;
      if (!line.starts_with("{\"schema\":1,\"dropped\":")) ++count;  // how many were not kept
    }
    return count;
  }

  // One run with the nth allocation failing; false if that has not come to pass.
  bool survives(long nth, bool for_ever) {
    unlink(options.log.c_str());
    CountingHandler handler;
    const c10::WarningUtils::WarningHandlerGuard guard(&handler);
    Detector detector(options);
    fail_allocation(nth, for_ever);
    std::vector<at::Tensor> results;
    EXPECT_NO_THROW(results = train());
    EXPECT_NO_THROW(detector.close());
    const long failed = allocations_failed();
    fail_allocation(0, 0);
    EXPECT_TRUE(same_bits(results, expected));
    EXPECT_EQ(open_scopes(), 0);
    const Stats stats = detector.stats();
    EXPECT_EQ(findings_in_log(), stats.findings - stats.log_failures);
    check_telling(stats, failed, for_ever, handler.said);
    return failed > 0;
  }

  void check_telling(const Stats& stats, long failed, bool for_ever, const std::vector<std::string>& said) {
    if (failed == 0) {
      EXPECT_EQ(stats.internal_errors, 0);
      EXPECT_EQ(stats.findings, findings);
    } else if (for_ever) {
      EXPECT_GE(stats.internal_errors, 1);
    } else {
      EXPECT_EQ(stats.internal_errors, 1);
      EXPECT_EQ(said.size(), 1u);
    }
  }

  Options options;
  std::string folder;
  std::vector<at::Tensor> expected = train(false);
  int64_t findings = 0;
};

TEST_F(Allocations, AreSurvivedWhicheverFails) {
  options.action = Action::kLog;
  {
    Detector detector(options);
    const std::vector<at::Tensor> held = train();
    detector.close();
    findings = detector.stats().findings;
    ASSERT_GE(findings, 3) << detector.report();
  }
  for (const bool for_ever : {false, true}) {
    long nth = 1;
    while (survives(nth, for_ever) && !HasFailure()) ++nth;
    EXPECT_GT(nth, 100);
    EXPECT_FALSE(HasFailure()) << "allocation " << nth << (for_ever ? ", for ever" : ", once");
    RecordProperty(for_ever ? "allocations_for_ever" : "allocations_once", static_cast<int>(nth - 1));
    std::cout << nth - 1 << " allocations failed, each " << (for_ever ? "for ever" : "once") << "\n";
  }
}

// With action="raise" only NonFiniteError is thrown, and every thrown finding is in the log. If a failure has kept a
// finding from being reported, the next harm reports it.
TEST_F(Allocations, LetNothingButTheAlarmOut) {
  const auto run = [&] {
    const at::Tensor bad = at::full({100}, -1.0).log();
    bool raised = false;
    for (int i = 0; i < 3 && !raised; ++i) {
      try {
        (void)bad.sum().item();
      } catch (const NonFiniteError&) {
        raised = true;
      }
    }
    return raised;
  };
  CountingHandler handler;
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  long nth = 1;
  for (bool failed = true; failed && !HasFailure(); ++nth) {
    unlink(options.log.c_str());
    Detector detector(options);
    fail_allocation(nth, 0);
    EXPECT_TRUE(run());
    failed = allocations_failed() > 0;
    fail_allocation(0, 0);
    const Stats stats = detector.stats();
    EXPECT_EQ(findings_in_log(), stats.findings - stats.log_failures);
    EXPECT_TRUE(findings_in_log() > 0 || stats.log_failures + stats.dropped > 0);
  }
  EXPECT_GT(nth, 20);
  EXPECT_FALSE(HasFailure()) << "allocation " << nth - 1;
}

TEST_F(Allocations, OfADetectorThatCannotBeMadeLeaveNothingBehind) {
  long nth = 1;
  for (bool failed = true; failed; ++nth) {
    fail_allocation(nth, 0);
    bool made = true;
    try {
      const Detector detector(options);
    } catch (const std::bad_alloc&) {
      made = false;
    }
    failed = allocations_failed() > 0;
    fail_allocation(0, 0);
    EXPECT_EQ(open_scopes(), 0);
    EXPECT_TRUE(made || failed);
  }
  EXPECT_GT(nth, 3);
  EXPECT_TRUE(same_bits(train(false), expected));
}

}  // namespace
}  // namespace torchnan
