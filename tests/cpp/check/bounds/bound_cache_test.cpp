#include "check/bounds/bound_cache.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "base/thread_switches.h"

namespace torchnan {
namespace {

using State = BoundCache::State;

unsigned long switches = 0;

// Stands for a thread of the host that takes part in no session and has run.
void run_another_thread() {
  set_thread_switches(&switches);
  ++switches;
}

TEST(BoundCache, ReturnsTheRecordedBound) {
  BoundCache bound_cache;
  const at::Tensor t = at::ones({4});
  EXPECT_EQ(bound_cache.find(t).state, State::kUnknown);
  bound_cache.record_read(t, {1});
  EXPECT_EQ(bound_cache.find(t).state, State::kFinite);
  EXPECT_EQ(bound_cache.find(t.slice(0, 1, 3)).state, State::kFinite);  // knowledge is of the storage
  bound_cache.record_uninitialized(t, 7, nullptr);
  EXPECT_EQ(bound_cache.find(t).state, State::kUninitialized);
  EXPECT_EQ(bound_cache.find(t).site, 7u);
  bound_cache.forget(t);
  EXPECT_EQ(bound_cache.find(t).state, State::kUnknown);
}

TEST(BoundCache, AgreesWithItselfOnFiniteness) {
  BoundCache bound_cache;
  const at::Tensor t = at::ones({4}), as_integers = t.view(at::kInt), as_doubles = t.view(at::kDouble);
  const auto expect_agreement = [&] {
    for (const at::Tensor& view : {t, as_integers, as_doubles, t.slice(0, 1, 3)}) {
      const BoundCache::Entry entry = bound_cache.find(view);
      EXPECT_EQ(bound_cache.is_finite(view), entry.state == State::kFinite);
      Bound bound;
      EXPECT_EQ(bound_cache.find_bound(view, bound),
                entry.state == State::kFinite || entry.state == State::kFiniteOrMasked);
      EXPECT_EQ(bound.max_abs, entry.bound.max_abs);
      EXPECT_EQ(bound.nonnegative, entry.bound.nonnegative);
      EXPECT_EQ(bound.masked, entry.bound.masked);
    }
  };
  expect_agreement();
  bound_cache.record_read(t, {1, true});
  EXPECT_TRUE(bound_cache.is_finite(t));
  EXPECT_FALSE(bound_cache.is_finite(as_doubles));
  expect_agreement();
  t.add_(1);  // unseen: the version says so
  EXPECT_FALSE(bound_cache.is_finite(t));
  expect_agreement();
  bound_cache.record_written(t, {1, false, true}, nullptr);
  EXPECT_FALSE(bound_cache.is_finite(t));  // some may be -inf
  expect_agreement();
  bound_cache.record_exported(t);
  bound_cache.record_read(t, {1});
  EXPECT_FALSE(bound_cache.is_finite(t));
  expect_agreement();
}

TEST(BoundCache, LearnsNothingOfAStorageFromAPartOfIt) {
  BoundCache bound_cache;
  const at::Tensor t = at::empty({4});
  bound_cache.record_uninitialized(t, 1, nullptr);
  bound_cache.record_read(t.slice(0, 0, 2), {1});
  EXPECT_EQ(bound_cache.find(t).state, State::kUninitialized);
}

// The allocator gives a freed StorageImpl's address to the next one; the old records do not apply to the new one.
TEST(BoundCache, DoesNotTakeAnAddressForAnothers) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "under AddressSanitizer no address is used again";
#endif
  BoundCache bound_cache;
  int reused = 0;
  for (int i = 0; i < 100; ++i) {
    std::optional<at::Tensor> first = at::ones({16});
    bound_cache.record_read(*first, {1});
    const void* address = first->storage().unsafeGetStorageImpl();
    first.reset();
    const at::Tensor second = at::ones({16});
    if (second.storage().unsafeGetStorageImpl() != address) continue;
    ++reused;
    ASSERT_EQ(bound_cache.find(second).state, State::kUnknown);
  }
  EXPECT_GT(reused, 0) << "the test has not tested anything";
}

TEST(BoundCache, ForgetsAStorageThatWasGivenOtherMemory) {
  BoundCache bound_cache;
  const at::Tensor t = at::ones({4});
  bound_cache.record_read(t, {1});
  t.storage().unsafeGetStorageImpl()->set_data_ptr(c10::GetCPUAllocator()->allocate(16));
  EXPECT_EQ(bound_cache.find(t).state, State::kUnknown);
}

TEST(BoundCache, KnowsNothingOfMemoryThatOthersMayWrite) {
  BoundCache bound_cache;
  float mine[4] = {};
  const at::Tensor borrowed = at::from_blob(mine, {4});
  bound_cache.record_read(borrowed, {1});
  EXPECT_EQ(bound_cache.find(borrowed).state, State::kUnknown);
}

TEST(BoundCache, WidensAWholeByAWriteToAPart) {
  BoundCache bound_cache;
  const at::Tensor t = at::ones({4});
  bound_cache.record_written(t, {2, true}, nullptr);
  bound_cache.record_written(t.slice(0, 0, 2), {5}, nullptr);
  EXPECT_GE(bound_cache.find(t).bound.max_abs, 5);
  EXPECT_LT(bound_cache.find(t).bound.max_abs, 5.001);
  EXPECT_FALSE(bound_cache.find(t).bound.nonnegative);
  bound_cache.record_written(t.slice(0, 0, 2), {1}, nullptr);
  EXPECT_GE(bound_cache.find(t).bound.max_abs, 5);  // of the other half
}

TEST(BoundCache, RoundsABoundUp) {
  BoundCache bound_cache;
  const at::Tensor t = at::ones({4}, at::kDouble);
  for (const double max_abs : {0.1, 1.0 / 3, 1e-300, 1e300}) {
    bound_cache.record_written(t, {max_abs}, nullptr);
    EXPECT_GE(bound_cache.find(t).bound.max_abs, max_abs);
    EXPECT_LE(bound_cache.find(t).bound.max_abs, max_abs * (1 + 1e-8));
  }
}

TEST(BoundCache, HasNoBoundForMemorySeenAsAnotherDtype) {
  BoundCache bound_cache;
  const at::Tensor t = at::ones({4});
  bound_cache.record_written(t, {1}, nullptr);
  EXPECT_EQ(bound_cache.find(t.view(at::kBFloat16)).state, State::kUnknown);
  EXPECT_EQ(bound_cache.find(t.view(at::kInt)).state, State::kUnknown);
}

TEST(BoundCache, EndsABoundThatIsWrittenAsAnotherDtype) {
  BoundCache bound_cache;
  const at::Tensor t = at::ones({8});
  const auto bound_after = [&](auto&& write) {
    bound_cache.record_written(t, {1}, nullptr);
    write();
    return bound_cache.find(t).state;
  };
  const at::Tensor doubles = t.view(at::kDouble);
  EXPECT_EQ(bound_after([&] { bound_cache.record_written(doubles.slice(0, 0, 2), {3}, nullptr); }), State::kStale);
  EXPECT_EQ(bound_after([&] { bound_cache.mark_stale(t.view(at::kInt)); }), State::kStale);
  EXPECT_EQ(bound_after([&] { bound_cache.mark_stale(t.view(at::kInt).slice(0, 0, 1)); }), State::kStale);
  const at::Tensor complex = at::view_as_complex(t.view({4, 2}));
  EXPECT_EQ(bound_after([&] { bound_cache.record_written(complex.slice(0, 0, 2), {}, nullptr); }), State::kStale);
}

TEST(BoundCache, DoubtsABoundOfAnotherVersion) {
  BoundCache bound_cache;
  const at::Tensor t = at::ones({4});
  bound_cache.record_read(t, {1});
  t.unsafeGetTensorImpl()->bump_version();  // a thread outside of every session has written
  EXPECT_EQ(bound_cache.find(t).state, State::kStale);
  bound_cache.record_written(t, {1}, nullptr, /*awaits_version=*/true);
  EXPECT_EQ(bound_cache.find(t).state, State::kStale);
  t.unsafeGetTensorImpl()->bump_version();  // the one that was announced
  EXPECT_EQ(bound_cache.find(t).state, State::kFinite);
  EXPECT_EQ(bound_cache.find(t.slice(0, 1, 3)).state, State::kFinite);  // a view has the version of its base
}

TEST(BoundCache, KnowsInferenceTensorsWithoutAVersion) {
  const c10::InferenceMode inference;
  BoundCache bound_cache;
  const at::Tensor t = at::ones({4});
  bound_cache.record_read(t, {1});
  EXPECT_EQ(bound_cache.find(t).state, State::kFinite);
}

TEST(BoundCache, DoubtsAnInferenceTensorOnceAnotherThreadHasRun) {
  const c10::InferenceMode inference;
  BoundCache bound_cache;
  const at::Tensor t = at::ones({4});
  bound_cache.record_written(t, {1}, nullptr);
  EXPECT_TRUE(bound_cache.is_finite(t));
  run_another_thread();
  EXPECT_FALSE(bound_cache.is_finite(t));
  EXPECT_EQ(bound_cache.find(t).state, State::kStale);
  bound_cache.record_written(t, {1}, nullptr);
  EXPECT_TRUE(bound_cache.is_finite(t));
}

TEST(BoundCache, DoubtsAStorageWithAnAliasOnceAnotherThreadHasRun) {
  BoundCache bound_cache;
  const at::Tensor t = at::ones({2, 2});
  const auto is_believed = [&] {
    const bool before = bound_cache.is_finite(t);
    EXPECT_EQ(before, bound_cache.find(t).state == State::kFinite);
    run_another_thread();
    EXPECT_EQ(bound_cache.is_finite(t), bound_cache.find(t).state == State::kFinite);
    return std::pair(before, bound_cache.is_finite(t));
  };
  bound_cache.record_read(t.t(), {1});  // a view, which has the version of the tensor
  EXPECT_EQ(is_believed(), std::pair(true, true));
  bound_cache.record_aliased(t);  // it is made, written and gone meanwhile
  EXPECT_EQ(is_believed(), std::pair(true, false));
  bound_cache.record_read(t, {1});
  EXPECT_EQ(is_believed(), std::pair(true, true));
  const at::Tensor alias = t.variable_data();
  bound_cache.record_written(t, {3}, nullptr);
  EXPECT_EQ(bound_cache.find(t).bound.max_abs, 3);
  EXPECT_EQ(is_believed(), std::pair(true, false));
  t.add_(1);
  bound_cache.record_aliased(t);  // whose bound is of another version
  EXPECT_EQ(is_believed(), std::pair(false, false));
}

// Tensors that share the version counter do not all share the storage.
TEST(BoundCache, DoubtsAStorageWithAnAliasThatATensorInOtherMemorySeemsToExplain) {
  BoundCache bound_cache;
  at::Tensor t = at::ones({4});
  const at::Tensor kept = t.detach();  // with the counter of t
  t.set_data(at::ones({4}));           // as Module.double() does
  const at::Tensor alias = t.variable_data();
  bound_cache.record_written(t, {1}, nullptr);
  EXPECT_TRUE(bound_cache.is_finite(t));
  run_another_thread();
  EXPECT_FALSE(bound_cache.is_finite(t));
}

TEST(BoundCache, KeepsTheStampOfAStorageThatGetsAnAlias) {
  BoundCache bound_cache;
  const at::Tensor t = at::ones({4});
  bound_cache.record_written(t, {2}, nullptr);
  bound_cache.stamp(t, 5);
  bound_cache.record_aliased(t);
  EXPECT_EQ(bound_cache.find(t).stamp, 5u);
  EXPECT_EQ(bound_cache.find(t).bound.max_abs, 2);
}

TEST(BoundCache, NeverTakesExportedMemoryForFinite) {
  BoundCache bound_cache;
  const at::Tensor t = at::ones({4});
  bound_cache.record_written(t, {1}, nullptr);
  bound_cache.record_exported(t);
  EXPECT_EQ(bound_cache.find(t).state, State::kStale);
  bound_cache.record_written(t, {1}, nullptr);
  EXPECT_EQ(bound_cache.find(t).state, State::kStale);
  bound_cache.clear();  // pushed out
  bound_cache.record_written(t, {1}, nullptr);
  EXPECT_EQ(bound_cache.find(t).state, State::kStale);
}

TEST(BoundCache, DoubtEndsWithTheNextWrite) {
  BoundCache bound_cache;
  const at::Tensor t = at::ones({4});
  bound_cache.record_written(t, {1}, nullptr);
  bound_cache.mark_stale(*t.storage().unsafeGetStorageImpl());
  EXPECT_EQ(bound_cache.find(t).state, State::kStale);
  bound_cache.record_written(t, {1}, nullptr);
  EXPECT_EQ(bound_cache.find(t).state, State::kFinite);
}

TEST(BoundCache, KeepsTheBoundOfACollectiveUntilTheNextWrite) {
  BoundCache bound_cache;
  const std::string collective = "c10d::allreduce_";
  const at::Tensor t = at::ones({4});
  bound_cache.record_pending_collective(t, &collective);
  EXPECT_EQ(bound_cache.find(t).state, State::kUnknown);
  bound_cache.record_requested(t, bound_cache.pending_collective(t));
  EXPECT_EQ(bound_cache.pending_collective(t), &collective);
  const std::string other = "aten::add_";
  bound_cache.record_written(t, {1}, &other);
  EXPECT_EQ(bound_cache.pending_collective(t), nullptr);
  bound_cache.record_pending_collective(t, &collective);
  bound_cache.forget(t);
  EXPECT_EQ(bound_cache.pending_collective(t), nullptr);
}

TEST(BoundCache, AStampEndsWithTheNextWriteAndChangesNoBound) {
  BoundCache bound_cache;
  const std::string op = "aten::add_";
  const at::Tensor t = at::ones({4});
  bound_cache.stamp(t, 5);
  EXPECT_EQ(bound_cache.find(t).stamp, 0u) << "nothing is known of it";
  bound_cache.record_written(t, {2, true}, &op);
  bound_cache.stamp(t, uint64_t{7} << 50);
  EXPECT_EQ(bound_cache.find(t).stamp, uint64_t{7} << 50);
  EXPECT_EQ(bound_cache.find(t).bound.max_abs, 2);
  EXPECT_TRUE(bound_cache.find(t).bound.nonnegative);
  t.add_(1);
  EXPECT_EQ(bound_cache.find(t).stamp, 0u) << "another version of the tensor";
  bound_cache.record_written(t, {3}, &op);
  EXPECT_EQ(bound_cache.find(t).stamp, 0u);
  EXPECT_EQ(bound_cache.find(t).op, &op);
  bound_cache.record_uninitialized(t, 7, &op);
  bound_cache.stamp(t, 9);
  EXPECT_EQ(bound_cache.find(t).stamp, 0u);
  EXPECT_EQ(bound_cache.find(t).op, &op);
}

TEST(BoundCache, ForgetsRatherThanGrows) {
  BoundCache bound_cache;
  std::vector<at::Tensor> many;
  for (int i = 0; i < 100000; ++i) many.push_back(at::empty({1}));
  for (const at::Tensor& t : many) bound_cache.record_read(t, {1});
  int known = 0;
  for (const at::Tensor& t : many) known += bound_cache.find(t).state == State::kFinite ? 1 : 0;
  EXPECT_GT(known, 20000);
  EXPECT_LT(known, 100000);
}

TEST(BoundCache, KeepsNothingAlive) {
  BoundCache bound_cache;
  const at::Tensor t = at::ones({4});
  const auto storage = t.storage().getWeakStorageImpl();
  const auto before = storage.weak_use_count();
  bound_cache.record_read(t, {1});
  EXPECT_EQ(storage.weak_use_count(), before);
  EXPECT_EQ(storage.use_count(), 1u);
}

}  // namespace
}  // namespace torchnan
