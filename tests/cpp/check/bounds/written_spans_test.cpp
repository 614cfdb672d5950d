#include "check/bounds/written_spans.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

namespace torchnan {
namespace {

TEST(WrittenSpans, FindsDuplicatesInAList) {
  WrittenSpans written;
  const at::Tensor t = at::ones({10});
  written.begin(3);
  EXPECT_FALSE(written.may_overlap(t));
  written.add(t);
  EXPECT_TRUE(written.may_overlap(t));
  EXPECT_TRUE(written.may_overlap(t.slice(0, 4, 6)));
  EXPECT_FALSE(written.may_overlap(at::ones({10})));
}

TEST(WrittenSpans, TellsThePartsOfAFlatBufferApart) {
  WrittenSpans written;
  const at::Tensor flat = at::ones({40});
  for (const bool forwards : {true, false}) {
    written.begin(4);
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t begin = 10 * (forwards ? i : 3 - i);
      const at::Tensor part = flat.slice(0, begin, begin + 10);
      EXPECT_FALSE(written.may_overlap(part));
      written.add(part);
    }
    EXPECT_TRUE(written.may_overlap(flat.slice(0, 15, 16)));
  }
}

TEST(WrittenSpans, TreatsAViewWithGapsAsItsWholeStorage) {
  WrittenSpans written;
  const at::Tensor table = at::ones({4, 4});
  written.begin(2);
  written.add(table.select(1, 0));
  EXPECT_TRUE(written.may_overlap(table.select(1, 3)));
}

TEST(WrittenSpans, StartsAnewWithEachCall) {
  WrittenSpans written;
  std::vector<at::Tensor> many;
  for (int i = 0; i < 100; ++i) many.push_back(at::ones({2}));
  for (int call = 0; call < 3; ++call) {
    written.begin(many.size());
    for (const at::Tensor& t : many) {
      EXPECT_FALSE(written.may_overlap(t));
      written.add(t);
    }
    for (const at::Tensor& t : many) EXPECT_TRUE(written.may_overlap(t));
  }
}

}  // namespace
}  // namespace torchnan
