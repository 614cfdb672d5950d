#include "check/scan/strided_view.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace torchnan {
namespace {

std::set<int64_t> every_offset(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  std::set<int64_t> offsets{0};
  for (size_t d = 0; d < sizes.size(); ++d) {
    std::set<int64_t> wider;
    for (const int64_t offset : offsets) {
      for (int64_t i = 0; i < sizes[d]; ++i) wider.insert(offset + i * strides[d]);
    }
    offsets = wider;
  }
  return offsets;
}

std::set<int64_t> visited(const StridedView& view) {
  std::set<int64_t> offsets;
  view.for_each_run([&](int64_t offset) {
    for (int64_t i = 0; i < view.run_length(); ++i) offsets.insert(offset + i * view.inner_stride());
    return true;
  });
  return offsets;
}

// GIVEN any sizes and strides, WHEN the view is walked, THEN exactly the tensor's elements are visited.
TEST(StridedView, VisitsExactlyTheElements) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<int64_t> sizes(random() % 5);
    std::vector<int64_t> strides(sizes.size());
    for (size_t d = 0; d < sizes.size(); ++d) {
      sizes[d] = 1 + random() % 4;
      strides[d] = random() % 3 == 0 ? 0 : random() % 30;
    }
    const StridedView view(sizes, strides);
    ASSERT_EQ(visited(view), every_offset(sizes, strides)) << "trial " << trial;
  }
}

TEST(StridedView, KnowsWhereARunBegins) {
  const StridedView view({4, 3, 2, 5}, {1000, 1, 100, 10});
  std::vector<int64_t> offsets;
  view.for_each_run([&](int64_t offset) {
    EXPECT_EQ(view.offset_of_run(static_cast<int64_t>(offsets.size())), offset);
    offsets.push_back(offset);
    return true;
  });
  EXPECT_EQ(view.runs(), 40);
  EXPECT_EQ(static_cast<int64_t>(offsets.size()), view.runs());
}

TEST(StridedView, MergesDenseDimensionsInAnyOrder) {
  const StridedView transposed({5, 4, 3}, {1, 15, 5});
  EXPECT_EQ(transposed.run_length(), 60);
  EXPECT_EQ(transposed.inner_stride(), 1);
}

TEST(StridedView, LooksAtAnExpandedElementOnce) {
  const StridedView expanded({1000, 3}, {0, 1});
  EXPECT_EQ(expanded.run_length(), 3);
}

TEST(StridedView, EndsWhenTheVisitorDoes) {
  const StridedView rows({4, 2}, {10, 1});
  int visits = 0;
  EXPECT_FALSE(rows.for_each_run([&](int64_t) { return ++visits < 2; }));
  EXPECT_EQ(visits, 2);
}

}  // namespace
}  // namespace torchnan
