// How each floating-point format encodes its non-finite values: the one table, for the host and for CUDA. Includes
// neither torch nor CUDA.
#pragma once

#include <stdint.h>

namespace torchnan {

// Complex dtypes have the encoding of their parts.
enum class FloatEncoding : uint8_t {
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kFloat8_e5m2,
  kFloat8_e4m3fn,   // finite only up to 448, one NaN, no Inf
  kFloat8_fnuz,     // e4m3fnuz and e5m2fnuz
  kFloat8_e8m0fnu,  // an exponent without sign
  kCount,
};

// The magnitude of a word w is (w + bias) & mask, unsigned and in the word's width. A word is non-finite if and only if
// its magnitude is at least `infinity`. The mask drops the sign, so the largest magnitude of a tensor is also its
// largest absolute value. The bias serves the "fnuz" formats, whose only NaN is the bit pattern of minus zero.
struct EncodingTraits {
  int word_bytes = 0;
  uint64_t bias = 0;
  uint64_t mask = 0;
  uint64_t infinity = 0;   // the first magnitude that is not finite
  uint64_t first_nan = 0;  // the first magnitude that is a NaN; equal to `infinity` for formats without Inf
};

// In the order of FloatEncoding.
inline constexpr EncodingTraits kEncodingTraits[] = {
    {2, 0, 0x7fff, 0x7c00, 0x7c01},
    {2, 0, 0x7fff, 0x7f80, 0x7f81},
    {4, 0, 0x7fffffff, 0x7f800000, 0x7f800001},
    {8, 0, 0x7fffffffffffffff, 0x7ff0000000000000, 0x7ff0000000000001},
    {1, 0, 0x7f, 0x7c, 0x7d},
    {1, 0, 0x7f, 0x7f, 0x7f},
    {1, 0x7f, 0xff, 0xff, 0xff},
    {1, 0, 0xff, 0xff, 0xff},
};
static_assert(sizeof(kEncodingTraits) / sizeof(kEncodingTraits[0]) == static_cast<int>(FloatEncoding::kCount),
              "one row for each encoding");

constexpr const EncodingTraits& traits_of(FloatEncoding encoding) {
  return kEncodingTraits[static_cast<int>(encoding)];
}

// An unsigned word of so many bytes.
template <int kBytes>
struct UnsignedWord;
template <>
struct UnsignedWord<1> {
  using Type = uint8_t;
};
template <>
struct UnsignedWord<2> {
  using Type = uint16_t;
};
template <>
struct UnsignedWord<4> {
  using Type = uint32_t;
};
template <>
struct UnsignedWord<8> {
  using Type = uint64_t;
};

// The traits of one encoding as constants, which device code can use: it cannot read the table.
template <FloatEncoding kEncoding>
struct Encoding {
  static constexpr EncodingTraits kTraits = kEncodingTraits[static_cast<int>(kEncoding)];
  using Word = typename UnsignedWord<kTraits.word_bytes>::Type;
  static constexpr Word kBias = static_cast<Word>(kTraits.bias);
  static constexpr Word kMask = static_cast<Word>(kTraits.mask);
  static constexpr Word kInfinity = static_cast<Word>(kTraits.infinity);
};

}  // namespace torchnan
