// Repeated rows are shown once.
#include "report/repetitions.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace torchnan {
namespace {

// A character a row; repeated parts in brackets with how many times.
std::string folded(const std::string& text) {
  std::vector<std::string> rows;
  for (const char one : text) rows.emplace_back(1, one);
  std::string shown;
  for (const Repetition& part : repetitions(rows)) {
    const std::string own = text.substr(part.begin, part.length);
    shown += part.times == 1 ? own : "(" + own + ")" + std::to_string(part.times);
  }
  return shown;
}

TEST(Repetitions, AreShownOnce) {
  EXPECT_EQ(folded(""), "");
  EXPECT_EQ(folded("abc"), "abc");
  EXPECT_EQ(folded("aaaab"), "(a)4b");
  EXPECT_EQ(folded("xababababy"), "x(ab)4y");
  EXPECT_EQ(folded("abcabcab"), "(abc)2ab");
  EXPECT_EQ(folded("aabaab"), "(aab)2");
  EXPECT_EQ(folded("aaa"), "(a)3");
}

TEST(Repetitions, OfMoreThanEightRowsAreNotLookedFor) {
  EXPECT_EQ(folded("abcdefghabcdefgh"), "(abcdefgh)2");
  EXPECT_EQ(folded("abcdefghiabcdefghi"), "abcdefghiabcdefghi");
}

}  // namespace
}  // namespace torchnan
