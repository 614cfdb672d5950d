// Hosts, sinks and actions that fail: the program continues, is warned once for each cause, and loses no other finding.
#include <torchnan/torchnan.h>

#include <functional>
#include <limits>
#include <stdexcept>

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "detection/user_notifier.h"
#include "base/runtime.h"

namespace torchnan {
namespace {

struct NoStdException {};

[[noreturn]] void fail(bool with_std) {
  if (with_std) throw std::runtime_error("out of order");
  throw NoStdException();
}

// Fails every question, or answers with nothing.
class FailingRuntime final : public Runtime {
 public:
  explicit FailingRuntime(bool with_std) : with_std_(with_std) {}
  SiteId current_stack_id() noexcept override { return 0; }
  SiteId nest_stack(SiteId live, SiteId) noexcept override { return live; }
  bool has_scopes_in_stacks() const noexcept override { return true; }
  bool reports_backward_roots() const noexcept override { return false; }
  bool is_loss_scaling(const Site&, const DetectionSession&) override { fail(with_std_); }
  ResolvedSite resolve_site(const Site&, const DetectionSession&) override { fail(with_std_); }
  std::vector<ResolvedSite> resolve_sites(const std::vector<Site>&, const DetectionSession&) override {
    fail(with_std_);
  }
  std::optional<Owner> owner_of_memory(const StorageSpan&, SiteId, bool, const DetectionSession&) override {
    fail(with_std_);
  }
  std::optional<int64_t> rank() override { fail(with_std_); }
  std::optional<InitialMagnitude> initial_magnitude(const c10::StorageImpl*) override { fail(with_std_); }
  std::string dataset_item(const at::Tensor&) override { fail(with_std_); }
  std::string bad_hyperparameter() override { fail(with_std_); }
  std::vector<ReachableTensor> reachable_tensors(const std::vector<at::Tensor>&) override { fail(with_std_); }

 private:
  bool with_std_;
};

class FailingMessenger final : public UserNotifier {
 public:
  void raise(const Finding&) override { fail(true); }
  void warn(const Finding&) override { fail(true); }
  void warn(const std::string&) override { fail(false); }
  void stop_in_debugger(const Finding&) override { fail(true); }
};

// Throws from its nth emit on, or then only.
class FailingSink final : public Sink {
 public:
  FailingSink(int nth, bool for_ever, bool with_std) : nth_(nth), for_ever_(for_ever), with_std_(with_std) {}
  void emit(const Finding&) override {
    ++emits_;
    if (emits_ == nth_ || (for_ever_ && emits_ > nth_)) fail(with_std_);
  }

 private:
  int nth_;
  bool for_ever_;
  bool with_std_;
  int emits_ = 0;
};

class CountingSink final : public Sink {
 public:
  explicit CountingSink(int& emitted) : emitted_(emitted) {}
  void emit(const Finding&) override { ++emitted_; }

 private:
  int& emitted_;
};

class Warnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { said.push_back(warning.msg()); }
  std::vector<std::string> said;

 private:
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

constexpr int kFindings = 4;

void make_findings() {
  const at::Tensor x = at::full({4}, -2.0);
  x.log().sum().item();
  x.sqrt().sum().item();
  x.rsqrt().sum().item();
  x.acos().sum().item();
}

Options logging() {
  Options options;
  options.action = Action::kLog;
  return options;
}

struct Plugged {
  explicit Plugged(Runtime* runtime) { set_runtime(runtime); }
  explicit Plugged(UserNotifier* notifier) { set_user_notifier(notifier); }
  ~Plugged() {
    set_runtime(program_before);
    set_user_notifier(messenger_before);
  }
  Runtime* program_before = &runtime();
  UserNotifier* messenger_before = &user_notifier();
};

// Fails when: ask.cpp does without run_contained().
TEST(FailingHost, ThatCannotAnswerLeavesAReportWithoutPlaces) {
  for (const bool with_std : {true, false}) {
    FailingRuntime host(with_std);
    const Plugged plugged(&host);
    Warnings warnings;
    Detector detector(logging());
    make_findings();
    const at::Tensor held = at::full({4}, -2.0).log();
    const at::Tensor weight = at::zeros({2}).requires_grad_();
    EXPECT_NO_THROW(weight.sqrt().sum().backward());
    EXPECT_NO_THROW(detector.close());
    ASSERT_GE(detector.findings().size(), static_cast<size_t>(kFindings));
    EXPECT_EQ(detector.findings()[0].op, "aten::log");
    EXPECT_TRUE(detector.findings()[0].stack.empty());
    EXPECT_EQ(detector.findings().back().level, Level::kWarning);  // it is unknown whether it is still referenced
    EXPECT_GT(detector.stats().internal_errors, kFindings);
    // the line, the item, whether it is a scaler, the owner of the gradient, the referenced tensors, the rank
    EXPECT_EQ(warnings.said.size(), 6u);
  }
}

// Fails when: FindingLog catches std::exception only, or a failing sink ends the loop over sinks.
TEST(FailingSink, IsCountedAndWarnedOfOnce) {
  for (int nth = 1; nth <= kFindings; ++nth) {
    for (const bool for_ever : {false, true}) {
      for (const bool with_std : {true, false}) {
        Warnings warnings;
        Detector detector(logging());
        int emitted = 0;
        detector.add_sink(std::make_unique<FailingSink>(nth, for_ever, with_std));
        detector.add_sink(std::make_unique<CountingSink>(emitted));
        EXPECT_NO_THROW(make_findings());
        const int missing = for_ever ? kFindings - nth + 1 : 1;
        EXPECT_EQ(emitted, kFindings);
        EXPECT_EQ(detector.stats().log_failures, missing);
        EXPECT_EQ(detector.stats().internal_errors, missing);
        ASSERT_EQ(warnings.said.size(), 1u);
        EXPECT_NE(warnings.said[0].find("recording a finding failed: "), std::string::npos);
      }
    }
  }
}

TEST(FailingSink, DoesNotKeepAnAlarmFromBeingRaised) {
  Warnings warnings;
  Detector detector;
  int emitted = 0;
  detector.add_sink(std::make_unique<FailingSink>(1, true, false));
  detector.add_sink(std::make_unique<CountingSink>(emitted));
  EXPECT_THROW(make_findings(), NonFiniteError);
  EXPECT_EQ(emitted, 1);
}

TEST(FailingAction, OfAnyKindIsCountedAndWarnedOfOnce) {
  for (const bool with_std : {true, false}) {
    Warnings warnings;
    Options options;
    options.callback = [&](const Finding&) { fail(with_std); };
    Detector detector(options);
    EXPECT_NO_THROW(make_findings());
    EXPECT_EQ(detector.stats().internal_errors, kFindings);
    EXPECT_EQ(detector.stats().findings, kFindings);
    EXPECT_EQ(warnings.said.size(), 1u);
  }
}

// Fails when: UserNotifier::warn is noexcept (the process ends), or act() lets what it throws out.
TEST(FailingMessenger, IsCounted) {
  FailingMessenger host;
  const Plugged plugged(&host);
  for (const Action action : {Action::kWarn, Action::kRaise}) {
    Options options;
    options.action = action;
    Detector detector(options);
    EXPECT_NO_THROW(make_findings());
    EXPECT_EQ(detector.stats().findings, kFindings);
    EXPECT_EQ(detector.stats().internal_errors, kFindings);
  }
}

// A finding that cannot be raised is raised by the next harm of the value.
TEST(FailingMessenger, LeavesTheAlarmToTheNextHarm) {
  const at::Tensor bad = at::full({4}, -2.0);
  Detector detector;
  const at::Tensor y = bad.log().sum();
  {
    FailingMessenger host;
    const Plugged plugged(&host);
    EXPECT_NO_THROW(y.item());
  }
  EXPECT_THROW(y.item(), NonFiniteError);
}

// A warning handler that turns warnings into errors must not stop a training that asked for warnings.
TEST(FailingMessenger, MayBeAHandlerThatThrows) {
  class Throwing final : public c10::WarningHandler {
   public:
    void process(const c10::Warning&) override { throw std::runtime_error("no warnings here"); }
  } handler;
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  Options options;
  options.action = Action::kWarn;
  Detector detector(options);
  EXPECT_NO_THROW(make_findings());
  EXPECT_EQ(detector.stats().internal_errors, kFindings);
}

// The program's own error arrives as it is, whatever is wrong with torchnan.
TEST(FailingHost, DoesNotTouchTheProgramsOwnErrors) {
  FailingRuntime host(true);
  const Plugged plugged(&host);
  Warnings warnings;
  Options options;
  options.callback = [](const Finding&) { throw std::runtime_error("mine"); };
  Detector detector(options);
  const at::Tensor bad = at::full({2, 3}, -2.0).log();
  try {
    at::mm(bad, bad);
    FAIL() << "no error";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("mat1 and mat2 shapes cannot be multiplied"), std::string::npos);
  }
}

// Fails when: ~Detector catches NonFiniteError only.
TEST(FailingHost, DoesNotEndTheProcessFromADestructor) {
  class Shouting final : public UserNotifier {
   public:
    class Shout final : public std::runtime_error, public UserFacingException {
     public:
      Shout() : std::runtime_error("stop at once") {}
    };
    void raise(const Finding&) override { throw Shout(); }
    void warn(const Finding&) override { throw Shout(); }
    void warn(const std::string&) override { throw Shout(); }
    void stop_in_debugger(const Finding&) override { throw Shout(); }
  } host;
  const Plugged plugged(&host);
  at::Tensor held;
  {
    Detector detector;
    held = at::full({4}, -2.0).log();
  }
  EXPECT_TRUE(held.isnan().all().item<bool>());
}

}  // namespace
}  // namespace torchnan
