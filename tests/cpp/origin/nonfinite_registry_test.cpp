#include "origin/nonfinite_registry.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace torchnan {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Cause cause(OriginRecord::Source source = OriginRecord::Source::kOperation,
            NonfiniteKinds kinds = NonfiniteKinds::only_nan()) {
  static uint64_t sequence = 0;
  auto root = std::make_shared<OriginRecord>();
  root->sequence = ++sequence;
  root->source = source;
  return {std::move(root), kinds};
}

NonfiniteRegistry::ProvenancePtr record(OriginRecord::Source source = OriginRecord::Source::kOperation) {
  return std::make_shared<Provenance>(cause(source));
}

std::vector<const OriginRecord*> roots(const NonfiniteRegistry::ProvenancePtr& provenance) {
  std::vector<const OriginRecord*> found;
  for (const Cause& cause : provenance->causes()) found.push_back(cause.origin.get());
  return found;
}

TEST(NonfiniteRegistry, RemembersAStorageThroughItsViews) {
  NonfiniteRegistry lineage;
  const at::Tensor t = at::full({4, 4}, kNaN);
  const auto known = record();
  lineage.remember(t, known);
  EXPECT_EQ(lineage.find(t.t()), known);
  EXPECT_EQ(lineage.find(t.select(0, 2)), known);
  EXPECT_TRUE(lineage.in_use());
  EXPECT_EQ(lineage.find(at::full({4, 4}, kNaN)), nullptr);
}

TEST(NonfiniteRegistry, SeparatesPartsOfAStorage) {
  NonfiniteRegistry lineage;
  const at::Tensor t = at::zeros({4, 4});
  const auto first = record();
  const auto last = record();
  lineage.remember(t.select(0, 0).fill_(kNaN), first);
  lineage.remember(t.select(0, 3).fill_(kNaN), last);
  EXPECT_EQ(lineage.find(t.select(0, 0)), first);
  EXPECT_EQ(lineage.find(t.select(0, 3)), last);
  const std::vector<const OriginRecord*> both{first->first().origin.get(), last->first().origin.get()};
  EXPECT_EQ(roots(lineage.find(t)), both);
  EXPECT_EQ(lineage.find(t.select(0, 1)), nullptr);
}

TEST(NonfiniteRegistry, ForgetsAValueThatAnotherHasReplaced) {
  NonfiniteRegistry lineage;
  const at::Tensor t = at::zeros({4, 4});
  const auto first = record();
  const auto second = record();
  t.select(1, 2).fill_(kNaN);
  lineage.remember(t, first);
  lineage.remember(t.select(1, 2), second);
  EXPECT_EQ(lineage.find(t), second);
  EXPECT_TRUE(first->first().origin->overwritten);
}

TEST(NonfiniteRegistry, KeepsAValueThatAnotherHasReplacedInPart) {
  NonfiniteRegistry lineage;
  const at::Tensor t = at::full({4}, kNaN);
  const auto first = record();
  const auto second = record();
  lineage.remember(t, first);
  lineage.remember(t.slice(0, 0, 2), second);
  EXPECT_EQ(lineage.find(t.slice(0, 0, 2)), second);
  EXPECT_EQ(lineage.find(t.slice(0, 0, 1)), second);
  EXPECT_EQ(lineage.find(t.slice(0, 2, 4)), first);
  EXPECT_EQ(roots(lineage.find(t)).size(), 2u);
}

TEST(NonfiniteRegistry, FindsOnlyValuesThatATensorExposes) {
  NonfiniteRegistry lineage;
  const at::Tensor t = at::zeros({4, 4}, at::kComplexFloat);
  const at::Tensor real = at::real(t);
  at::imag(t).fill_(kNaN);
  const auto hidden = record();
  const auto shown = record();
  lineage.remember(t, hidden);
  lineage.remember(real.select(0, 1).fill_(kNaN), shown);
  EXPECT_EQ(lineage.find(real), shown);
  EXPECT_EQ(roots(lineage.find(t)).size(), 2u);
  real.select(0, 2).fill_(kNaN);  // by the first, for all that is known
  EXPECT_EQ(roots(lineage.find(real)).size(), 2u);
}

TEST(NonfiniteRegistry, RemembersACopyOfBytes) {
  NonfiniteRegistry lineage;
  const at::Tensor t = at::zeros({8});
  const auto known = record();
  lineage.remember(t.slice(0, 4, 6).fill_(kNaN), known);
  const at::Tensor whole = t.clone();
  lineage.remember_copy(t.view(at::kByte), whole.view(at::kByte));
  EXPECT_EQ(lineage.find(whole.slice(0, 5, 6)), known);
  EXPECT_EQ(lineage.find(whole.slice(0, 0, 4)), nullptr);
  const at::Tensor half = t.slice(0, 4, 8).clone();
  lineage.remember_copy(t.slice(0, 4, 8).view(at::kByte), half.view(at::kByte));
  EXPECT_EQ(lineage.find(half.slice(0, 0, 1)), known);
  EXPECT_EQ(lineage.find(half.slice(0, 2, 4)), nullptr);
  EXPECT_EQ(lineage.alive().size(), 3u);
}

TEST(NonfiniteRegistry, PrefersAnAccidentToADesign) {
  NonfiniteRegistry lineage;
  const at::Tensor t = at::full({2, 2}, kNaN);
  const auto design = record(OriginRecord::Source::kConstant);
  const auto accident = record();
  lineage.remember(t.select(0, 0), design);
  lineage.remember(t.select(0, 1), accident);
  EXPECT_EQ(lineage.find(t)->first().origin, accident->first().origin);
}

TEST(NonfiniteRegistry, SeparatesColumns) {
  NonfiniteRegistry lineage;
  const at::Tensor t = at::zeros({5, 4});
  const auto second = record();
  lineage.remember(t.select(1, 1).fill_(kNaN), second);
  EXPECT_EQ(lineage.find(t.select(1, 2)), nullptr);
  EXPECT_EQ(lineage.find(t.slice(1, 2, 4)), nullptr);
  EXPECT_EQ(lineage.find(t.slice(1, 0, 2)), second);
  EXPECT_EQ(lineage.find(t.select(0, 3)), second);  // a row crosses every column
  EXPECT_EQ(lineage.find(t.t()), second);
}

TEST(NonfiniteRegistry, ForgetsNoCauseOfAStorageInManyPieces) {
  NonfiniteRegistry lineage;
  const at::Tensor t = at::full({1000}, kNaN);
  const auto oldest = record();
  lineage.remember(t[0], oldest);
  for (int64_t i = 1; i < 1000; ++i) lineage.remember(t[i], record());
  EXPECT_EQ(lineage.find(t[0]), oldest);
  EXPECT_NE(lineage.find(t[999]), nullptr);
  EXPECT_EQ(lineage.find(t)->first().origin, oldest->first().origin);
}

TEST(NonfiniteRegistry, ForgetsOverwrittenValues) {
  NonfiniteRegistry lineage;
  const at::Tensor t = at::full({4, 4}, kNaN);
  lineage.remember(t, record());
  t.select(0, 0).zero_();
  lineage.settle(t.select(0, 0));
  EXPECT_NE(lineage.find(t), nullptr);  // the rest is as it was
  t.zero_();
  lineage.settle(t);
  EXPECT_FALSE(lineage.in_use());
}

TEST(NonfiniteRegistry, NoticesThatAPartWasAllThereWas) {
  NonfiniteRegistry lineage;
  const at::Tensor t = at::zeros({4});
  t[1].fill_(kNaN);
  lineage.remember(t, record());
  t[1].zero_();
  lineage.settle(t[1]);
  EXPECT_FALSE(lineage.in_use());
}

TEST(NonfiniteRegistry, KeepsNothingAlive) {
  NonfiniteRegistry lineage;
  auto t = std::make_optional(at::full({4}, kNaN));
  const auto weak = t->storage().getWeakStorageImpl();
  lineage.remember(*t, record());
  EXPECT_EQ(weak.use_count(), 1u);
  t.reset();
  EXPECT_TRUE(weak.expired());
  EXPECT_TRUE(lineage.alive().empty());
}

// A record keeps the StorageImpl in the heap, where it splits the large blocks that PyTorch frees.
// Fails when remember() does not drain_expired(): there are 10,000 then.
TEST(NonfiniteRegistry, ForgetsTheDeadAndNoneOfTheLiving) {
  NonfiniteRegistry lineage;
  std::vector<std::pair<at::Tensor, NonfiniteRegistry::ProvenancePtr>> living;
  std::weak_ptr<const Provenance> of_dead;
  for (int i = 0; i < 10000; ++i) {
    const at::Tensor t = at::full({1}, kNaN);
    const auto known = record();
    lineage.remember(t, known);
    if (i == 0) of_dead = known;
    if (i % 20 == 19) living.emplace_back(t, known);
    ASSERT_LE(lineage.size(), 2 * living.size() + 2);
  }
  EXPECT_TRUE(of_dead.expired());
  for (const auto& [tensor, known] : living) {
    EXPECT_TRUE(lineage.contains(tensor));
    EXPECT_EQ(lineage.find(tensor), known);
  }
}

TEST(NonfiniteRegistry, ListsLiveStoragesOldestFirst) {
  NonfiniteRegistry lineage;
  const at::Tensor a = at::full({2}, kNaN);
  const at::Tensor b = at::full({2}, kNaN);
  const at::Tensor repaired = at::full({2}, kNaN);
  const auto older = record();
  const auto younger = record();
  lineage.remember(b, younger);
  lineage.remember(a, older);
  lineage.remember(repaired, record());
  repaired.zero_();  // out of sight
  const auto alive = lineage.alive();
  ASSERT_EQ(alive.size(), 2u);
  EXPECT_EQ(alive[0].provenance, older);
  EXPECT_EQ(alive[1].provenance, younger);
}

TEST(Cause, KeepsTheFirstStepsAndTheLast) {
  Cause current = cause();
  for (int i = 1; i <= 100; ++i) current = current.extended({nullptr, static_cast<SiteId>(i)}, false, current.kinds);
  ASSERT_EQ(current.steps.size(), 7u);
  EXPECT_EQ(current.steps.front().site, 1u);
  EXPECT_EQ(current.steps[5].site, 6u);
  EXPECT_EQ(current.steps.back().site, 100u);
  EXPECT_EQ(current.omitted, 93);
}

TEST(Cause, KnowsTheFirstComputationFromMoves) {
  const NonfiniteKinds inf = NonfiniteKinds::only_inf();
  Cause current = cause(OriginRecord::Source::kConstant).extended({nullptr, 1}, true, inf);
  EXPECT_FALSE(current.first_computation.has_value());
  current = current.extended({nullptr, 2}, false, inf).extended({nullptr, 3}, false, inf);
  EXPECT_EQ(current.first_computation->site, 2u);
}

TEST(Provenance, PutsAccidentsFirstAndEachOriginOnce) {
  const Cause design = cause(OriginRecord::Source::kConstant);
  const Cause older = cause();
  const Cause younger = cause();
  const Provenance both({younger, design, older, younger.extended({}, false, NonfiniteKinds::only_nan())});
  ASSERT_EQ(both.causes().size(), 3u);
  EXPECT_EQ(both.causes()[0].origin, older.origin);
  EXPECT_EQ(both.causes()[1].origin, younger.origin);
  EXPECT_EQ(both.causes()[2].origin, design.origin);
}

}  // namespace
}  // namespace torchnan
