#include "bounds/ledger.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <optional>

#include "intercept/op_plan.h"

namespace torchnan {
namespace {

using Known = Ledger::Known;

TEST(Ledger, KnowsWhatItWasTold) {
  Ledger ledger;
  const at::Tensor t = at::ones({4});
  EXPECT_EQ(ledger.find(t).known, Known::kNothing);
  ledger.note_read(t, {1});
  EXPECT_EQ(ledger.find(t).known, Known::kFinite);
  EXPECT_EQ(ledger.find(t.slice(0, 1, 3)).known, Known::kFinite);  // knowledge is of the storage
  ledger.note_unwritten(t, 7, nullptr);
  EXPECT_EQ(ledger.find(t).known, Known::kUnwritten);
  EXPECT_EQ(ledger.find(t).site, 7u);
  ledger.forget(t);
  EXPECT_EQ(ledger.find(t).known, Known::kNothing);
}

TEST(Ledger, LearnsNothingOfAStorageFromAPartOfIt) {
  Ledger ledger;
  const at::Tensor t = at::empty({4});
  ledger.note_unwritten(t, 1, nullptr);
  ledger.note_read(t.slice(0, 0, 2), {1});
  EXPECT_EQ(ledger.find(t).known, Known::kUnwritten);
}

// The allocator gives a freed StorageImpl's address to the next one; what was known of the old is not of the new.
TEST(Ledger, DoesNotTakeAnAddressForAnothers) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "under AddressSanitizer no address is used again";
#endif
  Ledger ledger;
  int reused = 0;
  for (int i = 0; i < 100; ++i) {
    std::optional<at::Tensor> first = at::ones({16});
    ledger.note_read(*first, {1});
    const void* address = first->storage().unsafeGetStorageImpl();
    first.reset();
    const at::Tensor second = at::ones({16});
    if (second.storage().unsafeGetStorageImpl() != address) continue;
    ++reused;
    ASSERT_EQ(ledger.find(second).known, Known::kNothing);
  }
  EXPECT_GT(reused, 0) << "the test has not tested anything";
}

TEST(Ledger, ForgetsAStorageThatWasGivenOtherMemory) {
  Ledger ledger;
  const at::Tensor t = at::ones({4});
  ledger.note_read(t, {1});
  t.storage().unsafeGetStorageImpl()->set_data_ptr(c10::GetCPUAllocator()->allocate(16));
  EXPECT_EQ(ledger.find(t).known, Known::kNothing);
}

TEST(Ledger, KnowsNothingOfMemoryThatOthersMayWrite) {
  Ledger ledger;
  float mine[4] = {};
  const at::Tensor borrowed = at::from_blob(mine, {4});
  ledger.note_read(borrowed, {1});
  EXPECT_EQ(ledger.find(borrowed).known, Known::kNothing);
}

TEST(Ledger, WidensAWholeByWhatIsWrittenToAPart) {
  Ledger ledger;
  const at::Tensor t = at::ones({4});
  ledger.note_written(t, {2, true}, nullptr);
  ledger.note_written(t.slice(0, 0, 2), {5}, nullptr);
  EXPECT_GE(ledger.find(t).bound.most, 5);
  EXPECT_LT(ledger.find(t).bound.most, 5.001);
  EXPECT_FALSE(ledger.find(t).bound.nonnegative);
  ledger.note_written(t.slice(0, 0, 2), {1}, nullptr);
  EXPECT_GE(ledger.find(t).bound.most, 5);  // of the other half
}

TEST(Ledger, RoundsABoundUp) {
  Ledger ledger;
  const at::Tensor t = at::ones({4}, at::kDouble);
  for (const double most : {0.1, 1.0 / 3, 1e-300, 1e300}) {
    ledger.note_written(t, {most}, nullptr);
    EXPECT_GE(ledger.find(t).bound.most, most);
    EXPECT_LE(ledger.find(t).bound.most, most * (1 + 1e-12));
  }
}

TEST(Ledger, TellsNothingOfMemorySeenAsAnotherDtype) {
  Ledger ledger;
  const at::Tensor t = at::ones({4});
  ledger.note_written(t, {1}, nullptr);
  EXPECT_EQ(ledger.find(t.view(at::kBFloat16)).known, Known::kNothing);
  EXPECT_EQ(ledger.find(t.view(at::kInt)).known, Known::kNothing);
}

TEST(Ledger, NeverTakesExportedMemoryForFinite) {
  Ledger ledger;
  const at::Tensor t = at::ones({4});
  ledger.note_written(t, {1}, nullptr);
  ledger.note_exported(t);
  EXPECT_EQ(ledger.find(t).known, Known::kWasFinite);
  ledger.note_written(t, {1}, nullptr);
  EXPECT_EQ(ledger.find(t).known, Known::kWasFinite);
  ledger.clear();  // pushed out
  ledger.note_written(t, {1}, nullptr);
  EXPECT_EQ(ledger.find(t).known, Known::kWasFinite);
}

TEST(Ledger, DoubtEndsWithTheNextWrite) {
  Ledger ledger;
  const at::Tensor t = at::ones({4});
  ledger.note_written(t, {1}, nullptr);
  ledger.doubt(t);
  EXPECT_EQ(ledger.find(t).known, Known::kWasFinite);
  ledger.note_written(t, {1}, nullptr);
  EXPECT_EQ(ledger.find(t).known, Known::kFinite);
}

TEST(Ledger, KnowsWhatACollectiveBringsUntilSomebodyElseWrites) {
  Ledger ledger;
  const OpPlan collective;
  const at::Tensor t = at::ones({4});
  ledger.note_brought(t, &collective);
  EXPECT_EQ(ledger.find(t).known, Known::kNothing);
  ledger.note_asked(t, ledger.brought_by(t));
  EXPECT_EQ(ledger.brought_by(t), &collective);
  const OpPlan other;
  ledger.note_written(t, {1}, &other);
  EXPECT_EQ(ledger.brought_by(t), nullptr);
  ledger.note_brought(t, &collective);
  ledger.forget(t);
  EXPECT_EQ(ledger.brought_by(t), nullptr);
}

TEST(Ledger, ForgetsRatherThanGrows) {
  Ledger ledger;
  std::vector<at::Tensor> many;
  for (int i = 0; i < 100000; ++i) many.push_back(at::empty({1}));
  for (const at::Tensor& t : many) ledger.note_read(t, {1});
  int known = 0;
  for (const at::Tensor& t : many) known += ledger.find(t).known == Known::kFinite ? 1 : 0;
  EXPECT_GT(known, 20000);
  EXPECT_LT(known, 100000);
}

TEST(Ledger, KeepsNothingAlive) {
  Ledger ledger;
  const at::Tensor t = at::ones({4});
  const auto storage = t.storage().getWeakStorageImpl();
  const auto before = storage.weak_use_count();
  ledger.note_read(t, {1});
  EXPECT_EQ(storage.weak_use_count(), before);
  EXPECT_EQ(storage.use_count(), 1u);
}

}  // namespace
}  // namespace torchnan
