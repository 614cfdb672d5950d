// The C++ face, end to end, without Python.
#include <torchnan/torchnan.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <csignal>
#include <limits>
#include <thread>

namespace torchnan {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Options logging() {
  Options options;
  options.action = Action::kLog;
  return options;
}

TEST(Detector, NamesTheOperationThatMadeIt) {
  const at::Tensor x = at::tensor({1.0, 0.0}).requires_grad_();
  Detector detector;
  try {
    const at::Tensor loss = (x.log() * 0).sum();
    loss.item();
    FAIL() << "nothing was thrown";
  } catch (const NonFiniteError& error) {
    const Finding& finding = error.finding();
    EXPECT_EQ(finding.op, "aten::log");
    EXPECT_EQ(finding.kind, Kind::kInf);
    EXPECT_EQ(finding.origin, Origin::kOp);
    EXPECT_EQ(finding.neginf, 1);
    EXPECT_EQ(finding.first_index, (std::vector<int64_t>{1}));
    EXPECT_EQ(finding.harm.kind, HarmKind::kRead);
    EXPECT_NE(std::string(error.what()).find("aten::log"), std::string::npos);
  }
}

TEST(Detector, WatchesTheBackwardPass) {
  const at::Tensor x = at::zeros({2}).requires_grad_();
  Detector detector(logging());
  x.sqrt().sum().backward();
  detector.close();
  ASSERT_EQ(detector.findings().size(), 1u);
  const Finding finding = detector.findings()[0];
  EXPECT_EQ(finding.phase, Phase::kBackward);
  EXPECT_EQ(finding.node, "SqrtBackward0");
  EXPECT_EQ(finding.harm.kind, HarmKind::kAlive);
}

TEST(Detector, IsSilentWhereTheProgramRepairs) {
  const at::Tensor x = at::tensor({1.0, 0.0});
  Detector detector;
  const at::Tensor repaired = at::where(x > 0, x.log(), at::zeros_like(x));
  EXPECT_EQ(repaired.sum().item<double>(), 0.0);
  detector.close();
  EXPECT_TRUE(detector.findings().empty());
}

TEST(Detector, NamesAParameterByTheNameItWasGiven) {
  const at::Tensor weight = at::full({2}, kNaN).requires_grad_();
  Detector detector(logging());
  detector.name_parameter("encoder.weight", weight);
  const at::Tensor y = weight * 2;
  detector.close();
  ASSERT_EQ(detector.findings().size(), 1u);
  EXPECT_EQ(detector.findings()[0].origin, Origin::kParameter);
  EXPECT_EQ(detector.findings()[0].name, "encoder.weight");
}

TEST(Detector, NestsAndTheInnermostDecides) {
  Detector outer;
  {
    Detector inner(logging());
    const at::Tensor y = at::zeros({1}).log();
    EXPECT_NO_THROW(y.item());
    inner.close();
    EXPECT_EQ(inner.findings().size(), 1u);
  }
  EXPECT_EQ(outer.findings().size(), 1u);
  const at::Tensor y = at::zeros({1}).log();
  EXPECT_THROW(y.item(), NonFiniteError);
}

TEST(Detector, SeesNothingOnceItIsClosed) {
  Detector detector(logging());
  detector.close();
  at::zeros({1}).log().item();
  EXPECT_EQ(detector.stats().ops, 0);
}

TEST(Detector, TakesInThreadsThatAskForIt) {
  Detector detector(logging());
  at::Tensor held;
  std::thread([&] {
    const ThreadScope scope(detector);
    held = at::zeros({1}).log();
  }).join();
  at::Tensor unseen;
  std::thread([&] { unseen = at::zeros({1}).log(); }).join();
  detector.close();
  EXPECT_EQ(detector.stats().nonfinite, 1);
  ASSERT_EQ(detector.findings().size(), 1u);
  EXPECT_EQ(detector.findings()[0].harm.kind, HarmKind::kAlive);
}

TEST(Detector, RefusesOptionsThatCannotBeUsed) {
  Options none;
  none.check_nan = none.check_inf = false;
  EXPECT_THROW(Detector{none}, std::invalid_argument);
  Options zero;
  zero.max_findings = 0;
  EXPECT_THROW(Detector{zero}, std::invalid_argument);
  for (const char* const pattern : {"", " ", "aten::log ", "aten::add.Tensor", "a\nb", "\xc3\xb6"}) {
    Options never;
    never.skip_ops = {"aten::log", pattern};
    EXPECT_EQ(never.validate().size(), 1u) << pattern;
  }
  Options blank;
  blank.log = " \t";
  EXPECT_THROW(Detector{blank}, std::invalid_argument);
  Options nowhere;
  nowhere.log = "/no/such/folder/log";
  EXPECT_THROW(Detector{nowhere}, std::system_error);
}

TEST(Detector, SaysWhatAnOptionTakes) {
  Options options;
  options.max_findings = 0;
  options.rescan_every = -1;
  options.skip_ops = {"aten::log", "a b"};
  options.check_nan = options.check_inf = false;
  options.when = static_cast<When>(7);
  EXPECT_EQ(
      options.validate(),
      (std::vector<std::string>{
          "when=7 cannot be used: when takes 'harm' or 'origin'.",
          "skip_ops='a b' cannot be used: skip_ops takes a sequence of operator names without overload, or globs, "
          "such as ('aten::log', '_foreach_*').",
          "rescan_every=-1 cannot be used: rescan_every takes 0, or a number of steps.",
          "max_findings=0 cannot be used: max_findings takes an integer of at least 1.",
          "check_nan and check_inf are both off: nothing would be checked."}));
}

// Fails when: Action::kBreakpoint only keeps the finding.
TEST(Detector, StopsInTheDebugger) {
  Options options;
  options.action = Action::kBreakpoint;
  EXPECT_EXIT(
      {
        Detector detector(options);
        at::zeros({1}).log().item();
      },
      testing::KilledBySignal(SIGTRAP), "made by   aten::log");
}

TEST(Detector, CallsBackInsteadOfThrowing) {
  std::vector<std::string> ops;
  Options options;
  options.callback = [&](const Finding& finding) { ops.push_back(finding.op); };
  Detector detector(options);
  at::zeros({1}).log().item();
  EXPECT_EQ(ops, std::vector<std::string>{"aten::log"});
}

TEST(Detector, GoesOnWhenACallbackFails) {
  Options options;
  options.callback = [](const Finding&) { throw std::runtime_error("mine"); };
  Detector detector(options);
  EXPECT_NO_THROW(at::zeros({1}).log().item());
  EXPECT_EQ(detector.stats().internal_errors, 1);
}

TEST(Guard, ThrowsWithAndWithoutADetector) {
  const at::Tensor bad = at::tensor({1.0, kNaN});
  EXPECT_THROW(guard(bad, "here"), NonFiniteError);
  EXPECT_EQ(guard(at::ones({2}), "here").sum().item<double>(), 2.0);
  Detector detector(logging());
  guard(bad, "there");
  ASSERT_EQ(detector.findings().size(), 1u);
  EXPECT_EQ(detector.findings()[0].harm.name, "there");
}

TEST(Guard, ChecksTheGradientThatPasses) {
  const at::Tensor x = at::zeros({2}).requires_grad_();
  const at::Tensor y = guard(x * 1, "root").sqrt().sum();
  EXPECT_THROW(y.backward(), NonFiniteError);
}

TEST(Guard, SaysItsLine) {
  Detector detector(logging());
  const int64_t line = __LINE__ + 1;
  guard(at::tensor({1.0, kNaN}), "there");
  ASSERT_EQ(detector.findings().size(), 1u);
  EXPECT_EQ(detector.findings()[0].harm.file, __FILE__);
  EXPECT_EQ(detector.findings()[0].harm.line, line);
}

TEST(Scope, IsTheCallSiteOfCallsInIt) {
  Detector detector(logging());
  const int64_t line = __LINE__ + 1;
  const Scope encoder("encoder");
  at::Tensor y;
  {
    const Scope attention("attention");
    y = at::zeros({1}).log();
  }
  y.item();
  ASSERT_EQ(detector.findings().size(), 1u);
  const Finding finding = detector.findings()[0];
  ASSERT_EQ(finding.stack.size(), 2u);
  EXPECT_EQ(finding.stack[0].function, "attention");
  EXPECT_EQ(finding.stack[1].function, "encoder");
  EXPECT_EQ(finding.stack[1].file, __FILE__);
  EXPECT_EQ(finding.stack[1].line, line);
  EXPECT_EQ(finding.harm.line, line);
}

TEST(Scope, IsKnownInTheBackwardPass) {
  const at::Tensor x = at::zeros({2}).requires_grad_();
  Detector detector(logging());
  at::Tensor y;
  {
    const Scope scope("norm");
    y = x.square().sum().sqrt();
  }
  y.backward();
  detector.close();
  ASSERT_FALSE(detector.findings().empty());
  const Finding finding = detector.findings()[0];
  EXPECT_EQ(finding.phase, Phase::kBackward);
  ASSERT_FALSE(finding.stack.empty());
  EXPECT_EQ(finding.stack[0].function, "norm");
}

TEST(Scope, IsNamedAfterItsFunction) {
  Detector detector(logging());
  const Scope scope;
  at::zeros({1}).log().item();
  ASSERT_EQ(detector.findings().size(), 1u);
  EXPECT_NE(detector.findings()[0].stack.at(0).function.find("TestBody"), std::string::npos);
}

}  // namespace
}  // namespace torchnan
