#include "check/scan/norm_scan.h"

#include <cmath>
#include <limits>

#include "check/scan/isa_dispatch.h"
#include "check/scan/float_format.h"

namespace torchnan {
namespace {

constexpr int64_t kLanes = 32;           // independent sums: four AVX-512 registers
constexpr int64_t kCacheLineBytes = 64;  // of the cache
constexpr int64_t kNearBytes = 1024;     // prefetched this far ahead into the first-level cache
constexpr int64_t kFarBytes = 4096;      // and into the second-level cache
constexpr double kLarge = 0x1p480;       // the sum of 2^63 squares of this fits
constexpr double kSmall = 0x1p-480;  // rounding errors of smaller squares do not change a sum with the square of this
constexpr double kShrink = 0x1p-600;
constexpr double kStretch = 0x1p600;

[[gnu::always_inline]] inline int32_t smaller(int32_t a, int32_t b) { return b < a ? b : a; }
[[gnu::always_inline]] inline float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// How the loops convert a word, or a pair of 16-bit words read at once, to numbers whose squares are exact in a double
// (except for float64).
struct Float64 {
  using Word = int64_t;
  static constexpr Word kMask = Encoding<FloatEncoding::kFloat64>::kMask;
  static constexpr int64_t kWords = 1;  // read at once
  [[gnu::always_inline]] static Word read(const Word* p) { return *p; }
  [[gnu::always_inline]] static double first(Word w) { return __builtin_bit_cast(double, w); }
};

struct ScaledDown : Float64 {
  [[gnu::always_inline]] static double first(Word w) { return Float64::first(w) * kShrink; }
};

struct ScaledUp : Float64 {
  [[gnu::always_inline]] static double first(Word w) { return Float64::first(w) * kStretch; }
};

struct Float32 {
  using Word = int32_t;
  static constexpr Word kMask = Encoding<FloatEncoding::kFloat32>::kMask;
  static constexpr int64_t kWords = 1;
  [[gnu::always_inline]] static Word read(const Word* p) { return *p; }
  [[gnu::always_inline]] static double first(Word w) { return __builtin_bit_cast(float, w); }
};

struct Pairs {
  using Word = int16_t;
  static constexpr Word kMask = Encoding<FloatEncoding::kFloat16>::kMask;  // and of bfloat16
  static constexpr int64_t kWords = 2;
  [[gnu::always_inline]] static uint32_t read(const Word* p) {
    uint32_t pair;
    __builtin_memcpy(&pair, p, sizeof(pair));
    return pair;
  }
};

struct Bfloat16 : Pairs {
  [[gnu::always_inline]] static double first(uint32_t pair) { return float_of(pair << 16); }
  [[gnu::always_inline]] static double second(uint32_t pair) { return float_of(pair & 0xffff0000); }
};

struct Float16 : Pairs {
  // Returns the magnitude, given its bits at the position of a float's. A subnormal comes out as 2^-15 (1 + f) instead
  // of 2^-14 f, so it is doubled and reduced by 2^-14; this does not decrease normal numbers. Avoids subnormal floats,
  // which are slow and may be flushed to zero.
  [[gnu::always_inline]] static double magnitude(uint32_t bits) {
    const float normal = float_of(bits + (112u << 23));
    const float subnormal = 2 * normal - 0x1p-14f;
    return float_of(smaller(__builtin_bit_cast(int32_t, normal), __builtin_bit_cast(int32_t, subnormal)));
  }
  [[gnu::always_inline]] static double first(uint32_t pair) { return magnitude((pair & 0x7fff) << 13); }
  [[gnu::always_inline]] static double second(uint32_t pair) { return magnitude((pair >> 3) & (0x7fffu << 13)); }
};

template <typename Format>
struct Lanes {
  static constexpr int64_t kStep = kLanes * Format::kWords;
  using Word = typename Format::Word;

  double squares[Format::kWords][kLanes] = {};
  Word max_abs[kStep] = {};

  [[gnu::always_inline]] void take_step(const Word* p) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const double x = Format::first(Format::read(p + lane * Format::kWords));
      squares[0][lane] += x * x;
    }
    if constexpr (Format::kWords == 2) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const double x = Format::second(Format::read(p + lane * Format::kWords));
        squares[1][lane] += x * x;
      }
    }
    for (int64_t lane = 0; lane < kStep; ++lane) {
      const Word w = static_cast<Word>(p[lane] & Format::kMask);
      max_abs[lane] = max_abs[lane] < w ? w : max_abs[lane];
    }
  }
};

struct Sums {
  double squares;
  uint64_t max_abs;  // a magnitude
};

template <typename Format>
[[gnu::always_inline]] inline Sums sum_up(const void* data, int64_t words) {
  using Word = typename Format::Word;
  constexpr int64_t kStep = Lanes<Format>::kStep;
  const Word* p = static_cast<const Word*>(data);
  Lanes<Format> lanes;
  int64_t i = 0;
  for (; i + kStep <= words; i += kStep) {
    // The loop has too many instructions for the hardware prefetcher to run far enough ahead.
    const char* here = reinterpret_cast<const char*>(p + i);
    for (size_t line = 0; line < kStep * sizeof(Word); line += kCacheLineBytes) {
      __builtin_prefetch(here + line + kNearBytes, 0, 3);
      __builtin_prefetch(here + line + kFarBytes, 0, 2);
    }
    lanes.take_step(p + i);
  }
  if (i < words) {
    Word rest[kStep] = {};
    __builtin_memcpy(rest, p + i, static_cast<size_t>(words - i) * sizeof(Word));
    lanes.take_step(rest);
  }
  Sums sums{0, 0};
  for (const auto& part : lanes.squares) {
    for (const double squares : part) sums.squares += squares;
  }
  Word max_abs = 0;
  for (const Word w : lanes.max_abs) max_abs = max_abs < w ? w : max_abs;
  sums.max_abs = static_cast<uint64_t>(max_abs);
  return sums;
}

template <typename Format>
constexpr IsaDispatch<&sum_up<Format>> kSumUp;

template <typename Format>
NormAndMax norm_of(const Sums& sums, c10::ScalarType dtype) {
  const FloatFormat format = *float_format(dtype);
  if (sums.max_abs >= format.first_nan) return {std::numeric_limits<double>::quiet_NaN(), 0};
  if (sums.max_abs >= format.infinity) return {std::numeric_limits<double>::infinity(), 0};
  return {Format::first(static_cast<typename Format::Word>(sums.max_abs)), sums.squares};
}

// If squares do not fit, repeats the loop with scaled values, which are then in the cache.
NormAndMax norm_of_float64(const void* data, int64_t words, c10::ScalarType dtype) {
  const NormAndMax norm_and_max = norm_of<Float64>(kSumUp<Float64>(data, words), dtype);
  const double max_abs = norm_and_max.max_abs();
  if (max_abs > kLarge && std::isfinite(max_abs))
    return NormAndMax::from_large(max_abs, kSumUp<ScaledDown>(data, words).squares);
  if (max_abs < kSmall && max_abs > 0) return NormAndMax::from_small(max_abs, kSumUp<ScaledUp>(data, words).squares);
  return norm_and_max;
}

// Counts each of the 256 values.
template <typename Float8>
NormAndMax norm_of_bytes(const void* data, int64_t words) {
  const auto* p = static_cast<const uint8_t*>(data);
  int64_t counts[256] = {};
  for (int64_t i = 0; i < words; ++i) ++counts[p[i]];
  NormAndMax norm_and_max;
  for (int byte = 0; byte < 256; ++byte) {
    if (counts[byte] == 0) continue;
    const double x = static_cast<float>(Float8(static_cast<uint8_t>(byte), Float8::from_bits()));
    norm_and_max += NormAndMax(std::abs(x), x * x).times(counts[byte]);
  }
  return norm_and_max;
}

double larger_or_nan(double a, double b) { return std::isnan(a) || a > b ? a : b; }

}  // namespace

NormAndMax NormAndMax::from_large(double max_abs, double squares) {
  NormAndMax norm_and_max(max_abs, 0);
  norm_and_max.large_squares_ = squares;
  return norm_and_max;
}

NormAndMax NormAndMax::from_small(double max_abs, double squares) {
  NormAndMax norm_and_max(max_abs, 0);
  norm_and_max.small_squares_ = squares;
  return norm_and_max;
}

NormAndMax& NormAndMax::operator+=(const NormAndMax& other) {
  max_abs_ = larger_or_nan(max_abs_, other.max_abs_);
  squares_ += other.squares_;
  large_squares_ += other.large_squares_;
  small_squares_ += other.small_squares_;
  return *this;
}

NormAndMax NormAndMax::times(int64_t copies) const {
  NormAndMax norm_and_max(max_abs_, squares_ * static_cast<double>(copies));
  norm_and_max.large_squares_ = large_squares_ * static_cast<double>(copies);
  norm_and_max.small_squares_ = small_squares_ * static_cast<double>(copies);
  return norm_and_max;
}

double NormAndMax::norm() const {
  if (!std::isfinite(max_abs_)) return max_abs_;
  if (large_squares_ > 0) return std::sqrt(large_squares_ + squares_ * kShrink * kShrink) / kShrink;
  if (squares_ > 0) return std::sqrt(squares_ + small_squares_ * kShrink * kShrink);
  return std::sqrt(small_squares_) / kStretch;
}

NormAndMax scan_norm(const void* data, int64_t words, c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexDouble:
      return norm_of_float64(data, words, dtype);
    case c10::ScalarType::BFloat16:
      return norm_of<Bfloat16>(kSumUp<Bfloat16>(data, words), dtype);
    case c10::ScalarType::Half:
    case c10::ScalarType::ComplexHalf:
      return norm_of<Float16>(kSumUp<Float16>(data, words), dtype);
    case c10::ScalarType::Float8_e5m2:
      return norm_of_bytes<c10::Float8_e5m2>(data, words);
    case c10::ScalarType::Float8_e4m3fn:
      return norm_of_bytes<c10::Float8_e4m3fn>(data, words);
    case c10::ScalarType::Float8_e5m2fnuz:
      return norm_of_bytes<c10::Float8_e5m2fnuz>(data, words);
    case c10::ScalarType::Float8_e4m3fnuz:
      return norm_of_bytes<c10::Float8_e4m3fnuz>(data, words);
    case c10::ScalarType::Float8_e8m0fnu:
      return norm_of_bytes<c10::Float8_e8m0fnu>(data, words);
    default:
      return norm_of<Float32>(kSumUp<Float32>(data, words), dtype);
  }
}

}  // namespace torchnan
