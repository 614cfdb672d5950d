#include "report/repetitions.h"

#include <algorithm>

namespace torchnan {
namespace {

constexpr size_t kLongestPart = 8;

// How many times the rows from `begin` on, `length` of them, follow each other.
size_t count_times(const std::vector<std::string>& rows, size_t begin, size_t length) {
  size_t times = 1;
  const auto first = rows.begin() + static_cast<int64_t>(begin);
  const auto n = static_cast<int64_t>(length);
  while (begin + (times + 1) * length <= rows.size() &&
         std::equal(first, first + n, first + n * static_cast<int64_t>(times))) {
    ++times;
  }
  return times;
}

Repetition part_from(const std::vector<std::string>& rows, size_t begin) {
  Repetition best{begin, 1, 1};
  for (size_t length = 1; length <= kLongestPart && begin + 2 * length <= rows.size(); ++length) {
    const size_t times = count_times(rows, begin, length);
    if (length * (times - 1) > best.length * (best.times - 1)) best = {begin, length, times};
  }
  return best;
}

}  // namespace

std::vector<Repetition> repetitions(const std::vector<std::string>& rows) {
  std::vector<Repetition> parts;
  for (size_t begin = 0; begin < rows.size(); begin += parts.back().length * parts.back().times) {
    parts.push_back(part_from(rows, begin));
  }
  return parts;
}

}  // namespace torchnan
