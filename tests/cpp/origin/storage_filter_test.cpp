#include "origin/storage_filter.h"

#include <atomic>
#include <map>
#include <thread>

#include <gtest/gtest.h>

namespace torchnan {
namespace {

// Addresses like those of an allocator; the memory is not accessed.
const c10::StorageImpl* storage(uintptr_t number) {
  return reinterpret_cast<const c10::StorageImpl*>(0x7f0000000000 + number * 112);
}

std::map<const c10::StorageImpl*, int> storages(uintptr_t first, uintptr_t count) {
  std::map<const c10::StorageImpl*, int> made;
  for (uintptr_t i = first; i < first + count; ++i) made[storage(i)] = 0;
  return made;
}

int count_held(const StorageFilter& filter, uintptr_t first, uintptr_t count) {
  int held = 0;
  for (uintptr_t i = first; i < first + count; ++i) held += filter.may_contain(storage(i));
  return held;
}

TEST(StorageFilter, MayContainAddedKeysAndFewOthers) {
  StorageFilter filter;
  EXPECT_EQ(count_held(filter, 0, 10000), 0);
  for (uintptr_t i = 0; i < 200; ++i) filter.add(storage(i));
  EXPECT_EQ(count_held(filter, 0, 200), 200);
  EXPECT_LT(count_held(filter, 200, 10000), 1000);  // of 4,096 bits 200 at most are set
}

TEST(StorageFilter, DropsStoragesThatAreNotKeys) {
  StorageFilter filter;
  for (uintptr_t i = 0; i < 4000; ++i) filter.add(storage(i));
  filter.assign_keys(storages(0, 10));
  EXPECT_EQ(count_held(filter, 0, 10), 10);
  EXPECT_LT(count_held(filter, 10, 4000), 100);
  filter.assign_keys(storages(0, 0));
  EXPECT_EQ(count_held(filter, 0, 4000), 0);
}

TEST(StorageFilter, KeysThatStayAreNeverMissing) {
  StorageFilter filter;
  filter.assign_keys(storages(0, 10));
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    for (uintptr_t i = 0; i < 2000; ++i) filter.assign_keys(storages(0, 10 + i % 100));
    is_over = true;
  });
  int missing = 0;
  do missing += 10 - count_held(filter, 0, 10);
  while (!is_over);
  writer.join();
  EXPECT_EQ(missing, 0);
}

}  // namespace
}  // namespace torchnan
