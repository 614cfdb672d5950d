#include "check/scan/finite_scan.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <vector>

namespace torchnan {
namespace {

// Several threads read a part each: beside every place where one may end and the next begin, for any number of them.
TEST(SharedScan, FindsOneBadWordBesideEveryEndOfAPart) {
  const FloatFormat format = *float_format(c10::kFloat);
  const int threads = at::get_num_threads();
  for (const int several : {1, 2, 3, 5, 8}) {
    at::set_num_threads(several);
    for (const int64_t words : {int64_t{1} << 18, (int64_t{1} << 19) + 1, (int64_t{1} << 20) - 1}) {
      std::vector<uint32_t> buffer(words, 0);
      for (int64_t part = 0; part <= several; ++part) {
        for (int64_t i = part * words / several - 5; i < part * words / several + 5; ++i) {
          if (i < 0 || i >= words) continue;
          buffer[i] = 0x7f800000;
          ASSERT_EQ(max_magnitude_shared(buffer.data(), words, format), 0x7f800000u)
              << several << " threads, word " << i;
          buffer[i] = 0;
        }
      }
      ASSERT_EQ(max_magnitude_shared(buffer.data(), words, format), 0u);
    }
  }
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace torchnan
