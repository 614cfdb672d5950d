#include "check/scan/finite_scan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "support/with_isa.h"

namespace torchnan {
namespace {

constexpr int64_t kVectorBytes = 256;  // the bytes of one step of the scan
constexpr int64_t kLineBytes = 64;

// The definition, one word at a time, by the arithmetic type.
struct Reference {
  double most;  // for the finite ones; starts with the value of a word of zero bits, the minimum
  Counts counts{};

  void add(double x) {
    if (std::isnan(x)) {
      ++counts.nan;
    } else if (std::isinf(x)) {
      ++(x > 0 ? counts.posinf : counts.neginf);
    } else {
      most = std::max(most, std::abs(x));
    }
  }
};

class FiniteScan : public WithIsa {
 protected:
  const double least = value_of(dtype, 0);

  void put(std::vector<uint8_t>& buffer, int64_t byte, uint64_t bits) const {
    std::memcpy(buffer.data() + byte, &bits, word);
  }

  double value_at(const uint8_t* data) const {
    uint64_t bits = 0;
    std::memcpy(&bits, data, word);
    return value_of(dtype, bits);
  }

  // One of each kind that the format has.
  std::vector<uint64_t> bad_words() const {
    std::vector<uint64_t> words{format.first_nan - format.bias};
    if (!format.has_infinity()) return words;
    words.push_back(format.infinity);
    words.push_back(format.infinity | (~format.mask & (~uint64_t{0} >> (64 - 8 * word))));
    words.push_back(words.back() + 1);  // a NaN with its sign set
    return words;
  }

  void expect_all(const uint8_t* data, int64_t words, const Reference& reference) const {
    const bool finite = reference.counts.all() == 0;
    ASSERT_EQ(all_finite(data, words, format), finite);
    const bool is_magnitude = format.bias == 0;  // the masked word
    if (is_magnitude) {
      if (finite) {
        ASSERT_EQ(value_of(dtype, max_magnitude(data, words, format)), reference.most);
      }
      ASSERT_EQ(value_of(dtype, max_finite_magnitude(data, words, format)), reference.most);
    }
    const NonfiniteKinds kinds = kinds_in(data, words, format);
    ASSERT_EQ(kinds.nan(), reference.counts.nan > 0);
    ASSERT_EQ(kinds.posinf(), reference.counts.posinf > 0);
    ASSERT_EQ(kinds.neginf(), reference.counts.neginf > 0);
    const Counts counts = count_words(data, words, format);
    ASSERT_EQ(counts.nan, reference.counts.nan);
    ASSERT_EQ(counts.posinf, reference.counts.posinf);
    ASSERT_EQ(counts.neginf, reference.counts.neginf);
  }

  // Finite in every format, and of many sizes.
  std::vector<uint8_t> finite_bytes(int64_t bytes) const {
    std::mt19937_64 random(1);
    std::vector<uint8_t> buffer(bytes);
    for (auto& byte : buffer) byte = static_cast<uint8_t>(random()) & 0x3b;
    return buffer;
  }
};

TEST_P(FiniteScan, EqualsTheDefinitionForEverySizeAndAlignment) {
  const int64_t most = 4 * kVectorBytes / word + 1;
  std::vector<uint8_t> buffer = finite_bytes(most * word + kLineBytes);
  const std::vector<uint64_t> bad = bad_words();
  std::mt19937_64 random(2);
  for (const bool with_bad : {false, true}) {
    for (int64_t i = 0; with_bad && i < most; i += 1 + static_cast<int64_t>(random() % 60)) {
      put(buffer, i * word, bad[random() % bad.size()]);
    }
    for (int64_t offset = 0; offset < kLineBytes; offset += word) {
      Reference reference{least};
      for (int64_t words = 0; words <= most; ++words) {
        SCOPED_TRACE(testing::Message() << "offset " << offset << ", words " << words);
        expect_all(buffer.data() + offset, words, reference);
        if (HasFatalFailure()) return;
        if (words < most) reference.add(value_at(buffer.data() + offset + words * word));
      }
    }
  }
}

TEST_P(FiniteScan, FindsOneBadWordAtEveryPosition) {
  const int64_t words = 3 * kVectorBytes / word + 5;
  std::vector<uint8_t> buffer(words * word, 0);
  for (int64_t i = 0; i < words; ++i) {
    for (const uint64_t bad : bad_words()) {
      SCOPED_TRACE(testing::Message() << "at " << i << ": " << std::hex << bad);
      put(buffer, i * word, bad);
      Reference reference{least};
      reference.add(value_of(dtype, bad));
      expect_all(buffer.data(), words, reference);
      if (HasFatalFailure()) return;
    }
    put(buffer, i * word, 0);
    ASSERT_TRUE(all_finite(buffer.data(), words, format)) << "at " << i;
  }
}

// Blocks end where lines do: at the ends of the first ones, from every alignment.
TEST_P(FiniteScan, FindsOneBadWordBesideEveryEndOfABlock) {
  const int64_t bytes = int64_t{3} << 16;
  std::vector<uint8_t> buffer(bytes + kLineBytes, 0);
  for (int64_t offset = 0; offset < kLineBytes; offset += word) {
    const int64_t words = (bytes - offset) / word;
    for (int64_t block = 0; block <= 3; ++block) {
      for (int64_t byte = (block << 16) - 2 * kLineBytes; byte < (block << 16) + 2 * kLineBytes; byte += word) {
        if (byte < offset || byte + word > offset + words * word) continue;
        put(buffer, byte, format.infinity - format.bias);
        ASSERT_FALSE(all_finite(buffer.data() + offset, words, format)) << "offset " << offset << ", byte " << byte;
        put(buffer, byte, 0);
      }
    }
  }
}

class LongFiniteScan : public FiniteScan {};

TEST_P(LongFiniteScan, FindsOneBadWordAtEveryPositionOfEverySizeAndAlignment) {
  const int64_t most = 4 * kVectorBytes / word + 1;
  const std::vector<uint64_t> bad = bad_words();
  std::vector<uint8_t> buffer(most * word + kLineBytes, 0);
  size_t turn = 0;
  for (int64_t offset = 0; offset < kLineBytes; offset += word) {
    const uint8_t* data = buffer.data() + offset;
    for (int64_t words = 1; words <= most; ++words) {
      for (int64_t i = 0; i < words; ++i) {
        const uint64_t here = bad[turn++ % bad.size()];
        put(buffer, offset + i * word, here);
        const NonfiniteKinds kinds = kinds_in(data, words, format);
        const bool found = !all_finite(data, words, format) && kinds.any() &&
                           kinds.nan() == std::isnan(value_of(dtype, here)) &&
                           count_words(data, words, format).all() == 1;
        ASSERT_TRUE(found) << "offset " << offset << ", words " << words << ", at " << i << ": " << std::hex << here;
        put(buffer, offset + i * word, 0);
      }
    }
  }
}

// The words on both sides of each boundary between kinds of numbers, with either sign.
std::vector<uint64_t> boundaries(const FloatFormat& format) {
  const uint64_t sign = uint64_t{1} << (8 * format.word_bytes - 1);
  std::vector<uint64_t> patterns;
  for (const uint64_t base : {uint64_t{0}, format.infinity, format.first_nan, format.mask, format.infinity / 2}) {
    for (const int64_t d : {-2, -1, 0, 1, 2}) {
      patterns.push_back((base + d) & format.mask);
      patterns.push_back(((base + d) & format.mask) | sign);
    }
  }
  return patterns;
}

// All patterns of the small formats; for the others, boundaries and random patterns, half of them with the exponent of
// a NaN.
std::vector<uint64_t> patterns_of(const FloatFormat& format, int64_t random_ones) {
  std::vector<uint64_t> patterns;
  if (format.word_bytes <= 2) {
    for (uint64_t p = 0; p < (uint64_t{1} << (8 * format.word_bytes)); ++p) patterns.push_back(p);
    return patterns;
  }
  patterns = boundaries(format);
  const uint64_t width = ~uint64_t{0} >> (64 - 8 * format.word_bytes);
  std::mt19937_64 random(2);
  for (int64_t i = 0; i < random_ones; ++i) {
    patterns.push_back((i % 2 == 0 ? random() : random() | format.infinity) & width);
  }
  return patterns;
}

TEST_P(FiniteScan, AgreesWithTheTypeOnEveryPatternAlone) {
  std::vector<uint8_t> buffer(word);
  for (const uint64_t p : patterns_of(format, 100000)) {
    SCOPED_TRACE(testing::Message() << "pattern " << std::hex << p);
    put(buffer, 0, p);
    Reference reference{least};
    reference.add(value_of(dtype, p));
    expect_all(buffer.data(), 1, reference);
    if (HasFatalFailure()) return;
  }
}

// Within one step of the scan.
TEST_P(FiniteScan, AgreesWithTheTypeOnEveryPatternAmongOthers) {
  const int64_t words = 2 * kVectorBytes / word + 3;
  std::vector<uint8_t> buffer(words * word, 0);
  const std::vector<uint64_t> patterns = patterns_of(format, 20000);
  for (size_t i = 0; i < patterns.size(); ++i) {
    const auto at = static_cast<int64_t>(i) % words * word;
    SCOPED_TRACE(testing::Message() << "pattern " << std::hex << patterns[i]);
    put(buffer, at, patterns[i]);
    Reference reference{least};
    reference.add(value_of(dtype, patterns[i]));
    expect_all(buffer.data(), words, reference);
    if (HasFatalFailure()) return;
    put(buffer, at, 0);
  }
}

TEST_P(LongFiniteScan, AgreesWithTheTypeOnTenMillionPatterns) {
  const std::vector<uint64_t> patterns = patterns_of(format, 10'000'000);
  const size_t at_once = 1001;
  std::vector<uint8_t> buffer(at_once * word);
  for (size_t first = 0; first < patterns.size(); first += at_once) {
    const size_t words = std::min(at_once, patterns.size() - first);
    Reference reference{least};
    for (size_t i = 0; i < words; ++i) {
      put(buffer, static_cast<int64_t>(i) * word, patterns[first + i]);
      reference.add(value_of(dtype, patterns[first + i]));
    }
    SCOPED_TRACE(testing::Message() << "patterns from " << first << " on");
    expect_all(buffer.data(), static_cast<int64_t>(words), reference);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(EveryDtype, FiniteScan, every_dtype_and_isa(), dtype_and_isa);
INSTANTIATE_TEST_SUITE_P(Long, LongFiniteScan, every_dtype_and_isa(), dtype_and_isa);

TEST(FiniteScanOfNothing, IsFinite) {
  EXPECT_TRUE(all_finite(nullptr, 0, *float_format(c10::kFloat)));
  EXPECT_FALSE(kinds_in(nullptr, 0, *float_format(c10::kFloat)).any());
}

TEST(FloatFormat, IsUnknownForTypesWithoutNaN) {
  for (const auto dtype :
       {c10::kInt, c10::kLong, c10::kBool, c10::kByte, c10::kQInt8, c10::ScalarType::Float4_e2m1fn_x2}) {
    EXPECT_EQ(float_format(dtype), nullptr) << c10::toString(dtype);
  }
}

// Fails when float_format() does not know a dtype that PyTorch has: add it there, and to kRealDtypes.
TEST(FloatFormat, IsKnownForEveryFloatingDtypeOfPyTorch) {
  for (int8_t i = 0; i < static_cast<int8_t>(c10::ScalarType::NumOptions); ++i) {
    const auto dtype = static_cast<c10::ScalarType>(i);
    const bool packed = dtype == c10::ScalarType::Float4_e2m1fn_x2;  // has neither NaN nor Inf
    if (!c10::isFloatingType(dtype) || packed) continue;
    EXPECT_NE(float_format(dtype), nullptr) << c10::toString(dtype);
    EXPECT_NE(std::find(std::begin(kRealDtypes), std::end(kRealDtypes), dtype), std::end(kRealDtypes))
        << c10::toString(dtype);
  }
}

TEST(Isa, InUseIsTheBestThatTheMachineHas) {
  EXPECT_TRUE(is_available(Isa::kBaseline));
  for (const Isa isa : kEveryIsa) EXPECT_LE(is_available(isa) ? isa : Isa::kBaseline, active_isa) << name_of(isa);
  EXPECT_TRUE(is_available(active_isa));
}

}  // namespace
}  // namespace torchnan
