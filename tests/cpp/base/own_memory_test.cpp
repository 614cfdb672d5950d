#include "base/own_memory.h"

#include <memory_resource>
#include <unordered_map>

#include <gtest/gtest.h>
#include <malloc.h>

namespace torchnan {
namespace {

TEST(OwnMemory, TakesNothingFromTheUsersHeap) {
  OwnMemory memory;
  std::pmr::unordered_map<int, std::pmr::string> table(&memory);
  table[0] = "the first entry also makes the pools";
  const size_t before = mallinfo2().uordblks;
  for (int i = 1; i < 10'000; ++i) table[i] = "longer than what a string keeps in itself";
  EXPECT_EQ(mallinfo2().uordblks, before);
}

TEST(OwnMemory, UsesFreedBlocksAgain) {
  OwnMemory memory;
  void* first = memory.allocate(40);
  memory.deallocate(first, 40);
  EXPECT_EQ(memory.allocate(40), first);
}

}  // namespace
}  // namespace torchnan
