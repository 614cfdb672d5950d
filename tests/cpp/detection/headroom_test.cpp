// The largest |x| of each call site: the records, their cost, and the report.
#include <torchnan/torchnan.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <stdexcept>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "base/runtime.h"
#include "check/operators/op_plan.h"
#include "detection/headroom_table.h"

namespace torchnan {
namespace {

using Entry = HeadroomTable::Entry;

Options keeping_headroom() {
  Options options;
  options.headroom = true;
  options.rescan_every = 0;
  return options;
}

const OpPlan& plan_of_mm() { return plan_of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "")); }

HeadroomTable::Producer producer_at(SiteId site, c10::ScalarType dtype = at::kHalf, bool grad_mode = true) {
  return {&plan_of_mm(), site, dtype, grad_mode};
}

std::vector<Entry> sorted(std::vector<Entry> entries) {
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.producer.site < b.producer.site; });
  return entries;
}

// -- bounds and measured values

// Counts the requests for a program's stacks.
class CountingRuntime final : public Runtime {
 public:
  SiteId current_stack_id() noexcept override { return ++captures, 7; }
  SiteId nest_stack(SiteId live, SiteId) noexcept override { return live; }
  bool has_scopes_in_stacks() const noexcept override { return true; }
  bool reports_backward_roots() const noexcept override { return true; }
  ResolvedSite resolve_site(const Site&, const DetectionSession&) override { return {}; }
  std::vector<ResolvedSite> resolve_sites(const std::vector<Site>& sites, const DetectionSession&) override {
    std::vector<ResolvedSite> resolved(sites.size());
    for (size_t i = 0; i < sites.size(); ++i) resolved[i].module = sites[i].live == 7 ? "seven" : "unknown";
    return resolved;
  }
  std::vector<ReachableTensor> reachable_tensors(const std::vector<at::Tensor>&) override { return {}; }

  int captures = 0;
};

class HeadroomOfSites : public testing::Test {
 protected:
  HeadroomOfSites() { set_runtime(&counting_); }
  ~HeadroomOfSites() override { set_runtime(before_); }

  // How often the stack is asked for while this runs.
  template <typename Run>
  int captures(const Options& options, Run&& run) {
    Detector detector(options);
    counting_.captures = 0;
    run();
    return counting_.captures;
  }

  Runtime* const before_ = &runtime();
  CountingRuntime counting_;
};

// The stack that autograd's node needs is there already when the magnitude is known.
// Fails when: record_op_entry() returns 0.
TEST_F(HeadroomOfSites, CostNoStackWhereANodeIsMade) {
  const at::Tensor x = at::rand({100, 100}).requires_grad_();
  const auto forward = [&] { at::mm(x, x).tanh(); };
  EXPECT_EQ(captures({}, forward), 2);
  EXPECT_EQ(captures(keeping_headroom(), forward), 2);
}

// Fails when: record_headroom() does without current_stack_id().
TEST_F(HeadroomOfSites, CostOneStackAnOperationWhereNoneIs) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::rand({100, 100});
  const auto forward = [&] { at::mm(x, x).tanh(); };
  EXPECT_EQ(captures({}, forward), 0);
  EXPECT_EQ(captures(keeping_headroom(), forward), 2);
}

// Fails when: record_headroom() does not ask for the graph task, and when it does not ask covers().
TEST_F(HeadroomOfSites, CostNothingInTheBackwardPassNorForOtherDtypes) {
  const at::Tensor x = at::rand({100, 100}).requires_grad_();
  const at::Tensor one = at::ones({});
  const auto step = [&] { at::mm(x, x).sum().backward(one); };
  EXPECT_EQ(captures(keeping_headroom(), step), captures({}, step));
  const at::Tensor wide = at::rand({10, 10}, at::kDouble);
  EXPECT_EQ(captures(keeping_headroom(), [&] { wide.mul(2).to(at::kLong).add(1); }), 0);
}

// Fails when: record_headroom() forgets the site of the arrival, or drain_headroom() the module.
TEST_F(HeadroomOfSites, IsReportedByModule) {
  const at::Tensor x = at::full({2, 2}, 3.0).requires_grad_();
  Detector detector(keeping_headroom());
  x.mul(-4);
  const auto told = detector.headroom();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].module, "seven");
  EXPECT_EQ(told[0].op, "aten::mul");
  EXPECT_EQ(told[0].absmax, 12);
}

// -- the table

// Fails when raise() stores smaller values, and when take() does not exchange.
TEST(HeadroomTable, KeepsTheLargestUntilItIsDrained) {
  HeadroomTable table;
  for (const double max_abs : {3.0, 7.0, 5.0}) table.record(producer_at(1), max_abs, true);
  table.record(producer_at(1), 90, false);
  table.record(producer_at(2), 0, true);
  const auto taken = sorted(table.drain());
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].producer.op, &plan_of_mm());
  EXPECT_EQ(taken[0].measured, 7);
  EXPECT_EQ(taken[0].proved, 90);
  EXPECT_EQ(taken[1].measured, 0);
  EXPECT_EQ(taken[1].proved, HeadroomTable::kNone);
  EXPECT_TRUE(table.drain().empty());
  table.record(producer_at(2), 1, true);
  EXPECT_EQ(table.drain().size(), 1u);
}

// Fails when: a part of the key is left out, or read back from other bits.
TEST(HeadroomTable, SeparatesProducers) {
  HeadroomTable table;
  const OpPlan& add = plan_of(c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor"));
  std::vector<HeadroomTable::Producer> producers;
  for (const OpPlan* op : {&plan_of_mm(), &add}) {
    for (const SiteId site : {0u, 1u, ~0u}) {
      for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat}) {
        for (const bool grad_mode : {false, true}) producers.push_back({op, site, dtype, grad_mode});
      }
    }
  }
  for (size_t i = 0; i < producers.size(); ++i) table.record(producers[i], static_cast<double>(i), true);
  const auto taken = table.drain();
  ASSERT_EQ(taken.size(), producers.size());
  for (const Entry& entry : taken) {
    const HeadroomTable::Producer& expected = producers[static_cast<size_t>(entry.measured)];
    EXPECT_EQ(entry.producer.op, expected.op);
    EXPECT_EQ(entry.producer.site, expected.site);
    EXPECT_EQ(entry.producer.dtype, expected.dtype);
    EXPECT_EQ(entry.producer.grad_mode, expected.grad_mode);
  }
}

// Fails when: record() does not count, and when a search that finds no free slot takes the last one.
TEST(HeadroomTable, CountsResultsWithoutASlot) {
  HeadroomTable table;
  constexpr SiteId kSites = 2 * HeadroomTable::kCapacity;
  for (SiteId site = 0; site < kSites; ++site) table.record(producer_at(site), site, true);
  const auto taken = table.drain();
  EXPECT_LE(taken.size(), HeadroomTable::kCapacity);
  EXPECT_GT(taken.size(), HeadroomTable::kCapacity * 9 / 10);
  EXPECT_EQ(static_cast<int64_t>(taken.size()) + table.dropped(), kSites);
  for (const Entry& entry : taken) EXPECT_EQ(entry.measured, entry.producer.site);
}

// In every round each thread records another magnitude at the same call sites, and the largest is kept in the end.
// Fails when raise() stores without comparing again.
TEST(HeadroomTable, LosesNothingToThreads) {
  HeadroomTable table;
  constexpr int kThreads = 2;
  constexpr int kRounds = 2000;
  constexpr SiteId kSites = 64;
  int lost = 0;
  const auto end_round = [&]() noexcept {
    for (const Entry& entry : table.drain()) lost += entry.measured != kThreads - 1;
  };
  std::barrier round(kThreads, end_round);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < kRounds; ++i) {
        for (SiteId site = 0; site < kSites; ++site) table.record(producer_at(site), thread, true);
        round.arrive_and_wait();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lost, 0);
}

// Each number is reported, even if it is recorded during a query. Fails when take() loads and then stores, instead of
// exchanging.
TEST(HeadroomTable, LosesNothingToWhoeverAsks) {
  HeadroomTable table;
  constexpr int kRounds = 1000;
  std::atomic<int> noted{0};
  std::atomic<int> told{0};
  std::thread writer([&] {
    for (int round = 1; round <= kRounds; ++round) {
      table.record(producer_at(1), round, true);
      noted = round;
      while (told != round) std::this_thread::yield();
    }
  });
  int lost = 0;
  for (int round = 1; round <= kRounds; ++round) {
    double largest = 0;
    for (bool is_last = false; !is_last;) {
      is_last = noted == round;
      for (const Entry& entry : table.drain()) largest = std::max(largest, entry.measured);
    }
    lost += largest != round;
    told = round;
  }
  writer.join();
  EXPECT_EQ(lost, 0);
}

// -- the detector

// Fails when bounds are reported as measured, and when they come first.
TEST(Headroom, IsExactWhereResultsWereRead) {
  const at::Tensor small = at::full({8, 8}, 3.0);
  const at::Tensor large = at::full({100, 100}, 2.0);
  Detector detector(keeping_headroom());
  const at::Tensor product = small.mul(-100);
  const at::Tensor doubled = at::mm(large.mul(2), large);
  const auto told = detector.headroom();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_FALSE(told[0].module);
  EXPECT_EQ(told[0].op, "aten::mul");
  EXPECT_EQ(told[0].dtype, "float32");
  EXPECT_TRUE(told[0].exact);
  EXPECT_EQ(told[0].absmax, 300);
  EXPECT_DOUBLE_EQ(told[0].used(), 300 / 3.4028234663852886e38);
  EXPECT_EQ(told[1].op, "aten::mm");
  EXPECT_FALSE(told[1].exact);
  EXPECT_GE(told[1].absmax, 800);
  EXPECT_LT(told[1].absmax, 1.1 * 800);
  EXPECT_EQ(told[1].absmax, told[1].bound);
  EXPECT_TRUE(detector.headroom().empty());
}

// Fails when: drain_headroom() does not ask for the option.
TEST(Headroom, HasToBeAskedForFromTheStart) {
  Detector detector;
  EXPECT_THROW(detector.headroom(), std::logic_error);
}

}  // namespace
}  // namespace torchnan
