#include "check/scan/norm_scan.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "support/with_isa.h"

namespace torchnan {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// The definition, in more than double precision and range.
struct Reference {
  long double squares = 0;
  double most = 0;

  void add(double x) {
    squares += static_cast<long double>(x) * x;
    most = std::max(most, std::abs(x));
  }
  double norm() const { return static_cast<double>(std::sqrt(squares)); }
};

void expect_close(const NormAndMax& norm_and_max, const Reference& reference) {
  ASSERT_EQ(norm_and_max.max_abs(), reference.most);
  ASSERT_NEAR(norm_and_max.norm(), reference.norm(), 1e-14 * reference.norm());
}

class ExtentScan : public WithIsa {
 protected:
  void put(std::vector<uint8_t>& buffer, int64_t byte, uint64_t bits) const {
    std::memcpy(buffer.data() + byte, &bits, word);
  }

  double value_at(const std::vector<uint8_t>& buffer, int64_t byte) const {
    uint64_t bits = 0;
    std::memcpy(&bits, buffer.data() + byte, word);
    return value_of(dtype, bits);
  }

  NormAndMax scan(const std::vector<uint8_t>& buffer, int64_t words) const {
    return scan_norm(buffer.data(), words, dtype);
  }
};

// With either sign and many sizes, finite in every format.
std::vector<uint8_t> random_bytes(int64_t bytes) {
  std::mt19937_64 random(1);
  std::vector<uint8_t> buffer(bytes);
  for (auto& byte : buffer) {
    byte = static_cast<uint8_t>(random()) & 0xbb;
    if (byte == 0x80) byte = 0;
  }
  return buffer;
}

TEST_P(ExtentScan, EqualsTheDefinitionForEverySizeAndAlignment) {
  const int64_t most = 4 * 256 / word + 1;
  const std::vector<uint8_t> buffer = random_bytes(most * word + 64);
  for (int64_t offset = 0; offset < 64; offset += word) {
    Reference reference;
    for (int64_t words = 0; words <= most; ++words) {
      SCOPED_TRACE(testing::Message() << "offset " << offset << ", words " << words);
      expect_close(scan_norm(buffer.data() + offset, words, dtype), reference);
      if (HasFatalFailure() || words == most) break;
      reference.add(value_at(buffer, offset + words * word));
    }
  }
}

TEST_P(ExtentScan, TellsOneBadWordAtEveryPosition) {
  const int64_t words = 3 * 256 / word + 5;
  std::vector<uint8_t> buffer(words * word, 0);
  const double before = scan(buffer, words).norm();  // float8_e8m0fnu has no zero
  for (int64_t i = 0; i < words; ++i) {
    put(buffer, i * word, format.first_nan - format.bias);
    ASSERT_TRUE(std::isnan(scan(buffer, words).max_abs())) << "at " << i;
    ASSERT_TRUE(std::isnan(scan(buffer, words).norm())) << "at " << i;
    if (format.has_infinity()) {
      put(buffer, (i + 1) % words * word, format.infinity);
      ASSERT_TRUE(std::isnan(scan(buffer, words).max_abs())) << "beside an Inf, at " << i;
      put(buffer, i * word, format.infinity | ~format.mask);
      ASSERT_EQ(scan(buffer, words).max_abs(), kInf) << "at " << i;
      ASSERT_EQ(scan(buffer, words).norm(), kInf) << "at " << i;
      put(buffer, (i + 1) % words * word, 0);
    }
    put(buffer, i * word, 0);
    ASSERT_EQ(scan(buffer, words).norm(), before);
  }
}

// Subnormal numbers too: the norm of one number is its magnitude, to the last bit.
TEST_P(ExtentScan, IsTheMagnitudeOfEachPatternAlone) {
  std::vector<uint64_t> patterns;
  if (word <= 2) {
    for (uint64_t p = 0; p < (uint64_t{1} << (8 * word)); ++p) patterns.push_back(p);
  } else {
    std::mt19937_64 random(2);
    for (int i = 0; i < 50000; ++i) patterns.push_back(random());
    for (uint64_t p = 0; p < 100; ++p) patterns.push_back(p);
  }
  std::vector<uint8_t> buffer(word);
  for (const uint64_t p : patterns) {
    put(buffer, 0, p);
    const double magnitude = std::abs(value_at(buffer, 0));
    const NormAndMax norm_and_max = scan(buffer, 1);
    if (std::isnan(magnitude)) {
      ASSERT_TRUE(std::isnan(norm_and_max.max_abs()) && std::isnan(norm_and_max.norm())) << std::hex << p;
      continue;
    }
    ASSERT_EQ(norm_and_max.max_abs(), magnitude) << std::hex << p;
    if (word < 8) {
      ASSERT_EQ(norm_and_max.norm(), magnitude) << std::hex << p;
    } else {
      ASSERT_DOUBLE_EQ(norm_and_max.norm(), magnitude) << std::hex << p;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryDtype, ExtentScan, every_dtype_and_isa(), dtype_and_isa);

// Squares of these overflow, vanish or lose their last bits, and the norm is right nevertheless: of each alone, and of
// any two that meet, in one scan or added up afterwards.
TEST(ExtentOfDoubles, IsRightWhereSquaresAreNot) {
  const double values[] = {0.0,   5e-324, 3e-310, 1e-300, 1e-200, 1e-162, 1e-145, 1e-144, 1e-100,
                           1e-20, 1.0,    1e100,  1e144,  1e145,  1e154,  1e200,  1e300,  1.7e308};
  for (const double a : values) {
    for (const double b : values) {
      SCOPED_TRACE(testing::Message() << a << " and " << b);
      const double pair[] = {-a, b};
      Reference reference;
      for (const double x : pair) reference.add(x);
      if (!std::isfinite(reference.norm())) continue;  // nor is it a double
      expect_close(scan_norm(pair, 2, c10::ScalarType::Double), reference);
      NormAndMax norm_and_max = scan_norm(pair, 1, c10::ScalarType::Double);
      norm_and_max += scan_norm(pair + 1, 1, c10::ScalarType::Double);
      expect_close(norm_and_max, reference);
    }
  }
}

TEST(ExtentOfDoubles, IsRightForManyExtremeOnes) {
  for (const double x : {1e-310, 1e-300, 1e300}) {
    const std::vector<double> many(10000, x);
    const NormAndMax norm_and_max = scan_norm(many.data(), 10000, c10::ScalarType::Double);
    EXPECT_NEAR(norm_and_max.norm() / x, 100, 1e-11) << x;
    EXPECT_NEAR(norm_and_max.times(4).norm() / x, 200, 1e-11) << x;
  }
}

TEST(ExtentOfDoubles, IsInfiniteWhereTheNormIsNoDouble) {
  const double pair[] = {1.7e308, 1.7e308};
  const NormAndMax norm_and_max = scan_norm(pair, 2, c10::ScalarType::Double);
  EXPECT_EQ(norm_and_max.norm(), kInf);
  EXPECT_EQ(norm_and_max.max_abs(), 1.7e308);
}

TEST(ExtentOfNothing, IsZero) {
  for (const auto dtype : kRealDtypes) {
    EXPECT_EQ(scan_norm(nullptr, 0, dtype).norm(), 0) << c10::toString(dtype);
    EXPECT_EQ(scan_norm(nullptr, 0, dtype).max_abs(), 0) << c10::toString(dtype);
  }
}

TEST(ExtentOfParts, KeepsANaNAndAnInfinity) {
  const float values[] = {3.0f, std::numeric_limits<float>::quiet_NaN(), static_cast<float>(kInf)};
  const auto of = [&](int i) { return scan_norm(values + i, 1, c10::ScalarType::Float); };
  for (const auto& order : {std::vector{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}) {
    NormAndMax norm_and_max;
    for (const int i : order) norm_and_max += of(i);
    EXPECT_TRUE(std::isnan(norm_and_max.max_abs()));
    EXPECT_TRUE(std::isnan(norm_and_max.norm()));
  }
  NormAndMax norm_and_max = of(2);
  norm_and_max += of(0);
  EXPECT_EQ(norm_and_max.max_abs(), kInf);
  EXPECT_EQ(norm_and_max.norm(), kInf);
}

}  // namespace
}  // namespace torchnan
