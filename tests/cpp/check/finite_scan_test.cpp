#include "check/finite_scan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "support/float_dtypes.h"

namespace torchnan {
namespace {

// The definition, one word at a time.
uint64_t word_at(const uint8_t* data, int64_t i, const FloatFormat& format) {
  uint64_t word = 0;
  std::memcpy(&word, data + i * format.word_bytes, format.word_bytes);
  return word;
}

uint64_t masked(uint64_t word, const FloatFormat& format) {
  const uint64_t width_mask = format.word_bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * format.word_bytes)) - 1;
  return (word + format.bias) & width_mask & format.mask;
}

uint64_t reference_max(const uint8_t* data, int64_t words, const FloatFormat& format) {
  uint64_t best = 0;
  for (int64_t i = 0; i < words; ++i) best = std::max(best, masked(word_at(data, i, format), format));
  return best;
}

class FiniteScan : public testing::TestWithParam<c10::ScalarType> {
 protected:
  const FloatFormat format = *float_format(GetParam());
  const int64_t word = format.word_bytes;

  void put(std::vector<uint8_t>& buffer, int64_t byte, uint64_t bits) const {
    std::memcpy(buffer.data() + byte, &bits, word);
  }
};

TEST_P(FiniteScan, EqualsTheDefinitionForEverySizeAndAlignment) {
  std::mt19937_64 random(1);
  const int64_t most = 4 * 256 / word + 1;  // four rounds of accumulators and one word
  std::vector<uint8_t> buffer(most * word + 64);
  for (auto& byte : buffer) byte = static_cast<uint8_t>(random()) & 0x3b;  // finite in every format
  for (int64_t offset = 0; offset < 64; offset += word) {
    for (int64_t words = 0; words <= most; ++words) {
      const uint8_t* data = buffer.data() + offset;
      ASSERT_EQ(max_magnitude(data, words, format), reference_max(data, words, format))
          << "offset " << offset << ", words " << words;
      if ((offset + words) * word > static_cast<int64_t>(buffer.size())) break;
    }
  }
}

TEST_P(FiniteScan, FindsOneBadWordAtEveryPosition) {
  const int64_t words = 3 * 256 / word + 5;
  std::vector<uint8_t> buffer(words * word, 0);
  for (int64_t i = 0; i < words; ++i) {
    put(buffer, i * word, format.first_nan - format.bias);
    ASSERT_FALSE(all_finite(buffer.data(), words, format)) << "at " << i;
    ASSERT_TRUE(kinds_in(buffer.data(), words, format).nan()) << "at " << i;
    put(buffer, i * word, 0);
    ASSERT_TRUE(all_finite(buffer.data(), words, format)) << "at " << i;
  }
}

TEST_P(FiniteScan, FindsABadWordInTheLastBlockOfALargeBuffer) {
  const int64_t words = (1 << 20) / word + 1;
  std::vector<uint8_t> buffer(words * word, 0);
  EXPECT_TRUE(all_finite(buffer.data(), words, format));
  put(buffer, (words - 1) * word, format.infinity - format.bias);
  EXPECT_FALSE(all_finite(buffer.data(), words, format));
}

// Every pattern of the small formats, boundary and random ones of the others: the verdict of the format is that of
// the arithmetic type.
TEST_P(FiniteScan, AgreesWithTheTypeOnEveryPattern) {
  std::vector<uint64_t> patterns;
  if (word <= 2) {
    for (uint64_t p = 0; p < (uint64_t{1} << (8 * word)); ++p) patterns.push_back(p);
  } else {
    const uint64_t sign = uint64_t{1} << (8 * word - 1);
    for (const uint64_t base : {uint64_t{0}, format.infinity, format.first_nan, format.mask}) {
      for (const int64_t d : {-2, -1, 0, 1, 2}) {
        patterns.push_back((base + d) & format.mask);
        patterns.push_back(((base + d) & format.mask) | sign);
      }
    }
    std::mt19937_64 random(2);
    for (int i = 0; i < 200000; ++i) patterns.push_back(random() & (format.mask | sign));
  }
  for (const uint64_t p : patterns) {
    std::vector<uint8_t> buffer(word);
    put(buffer, 0, p);
    const double value = value_of(GetParam(), p);
    ASSERT_EQ(all_finite(buffer.data(), 1, format), std::isfinite(value)) << std::hex << p;
    const Kinds kinds = kinds_in(buffer.data(), 1, format);
    ASSERT_EQ(kinds.nan(), std::isnan(value)) << std::hex << p;
    ASSERT_EQ(kinds.posinf(), value == std::numeric_limits<double>::infinity()) << std::hex << p;
    ASSERT_EQ(kinds.neginf(), value == -std::numeric_limits<double>::infinity()) << std::hex << p;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryDtype, FiniteScan, testing::ValuesIn(kRealDtypes),
                         [](const auto& test) { return std::string(c10::toString(test.param)); });

TEST(FiniteScanOfNothing, IsFinite) {
  EXPECT_TRUE(all_finite(nullptr, 0, *float_format(c10::kFloat)));
  EXPECT_FALSE(kinds_in(nullptr, 0, *float_format(c10::kFloat)).any());
}

TEST(FloatFormat, IsUnknownForWhatCannotHoldANaN) {
  for (const auto dtype :
       {c10::kInt, c10::kLong, c10::kBool, c10::kByte, c10::kQInt8, c10::ScalarType::Float4_e2m1fn_x2}) {
    EXPECT_FALSE(float_format(dtype).has_value()) << c10::toString(dtype);
  }
}

}  // namespace
}  // namespace torchnan
