// Tests which tensors lie in memory that a call writes.
#include "check/scan/storage_ranges.h"

#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace torchnan {
namespace {

StorageRanges ranges_of(const std::vector<at::Tensor>& tensors) {
  StorageRanges ranges;
  for (const at::Tensor& tensor : tensors) ranges.add(tensor);
  ranges.sort();
  return ranges;
}

at::Tensor alias_of(const at::Tensor& tensor, int64_t first, int64_t count) {
  return at::from_blob(tensor.data_ptr<float>() + first, {count});
}

TEST(StorageRanges, OverlapWithAnotherStorageInTheirMemory) {
  const at::Tensor whole = at::ones({100});
  const StorageRanges ranges = ranges_of({alias_of(whole, 40, 20)});
  EXPECT_TRUE(ranges.overlap(whole));
  EXPECT_TRUE(ranges.overlap(alias_of(whole, 59, 1)));
  EXPECT_FALSE(ranges.overlap(alias_of(whole, 60, 10)));
  EXPECT_FALSE(ranges.overlap(alias_of(whole, 0, 40)));
  EXPECT_FALSE(ranges.overlap(at::ones({100})));
}

TEST(StorageRanges, FindEachOfMany) {
  const at::Tensor whole = at::ones({1000});
  std::vector<at::Tensor> written;
  for (int64_t i = 9; i >= 0; --i) written.push_back(alias_of(whole, 100 * i, 50));
  written.push_back(alias_of(whole, 20, 10));   // inside one of them
  written.push_back(alias_of(whole, 140, 20));  // and beyond the end of one
  const StorageRanges ranges = ranges_of(written);
  for (int64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(ranges.overlap(alias_of(whole, i, 1)), i % 100 < 50 || (i >= 140 && i < 160)) << i;
  }
}

TEST(StorageRanges, KnowTheValuesOfASparseTensor) {
  const at::Tensor sparse = at::ones({3}).to_sparse();
  EXPECT_TRUE(ranges_of({sparse}).overlap(sparse._values()));
}

TEST(StorageRanges, KnowNothingOfTensorsWithoutMemory) {
  const StorageRanges ranges = ranges_of({at::ones({0}), at::empty({5}, at::kMeta)});
  EXPECT_TRUE(ranges.empty());
  EXPECT_FALSE(ranges.overlap(at::ones({0})));
  EXPECT_FALSE(ranges_of({at::ones({5})}).overlap(at::empty({5}, at::kMeta)));
}

}  // namespace
}  // namespace torchnan
