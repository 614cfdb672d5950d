// How floating-point words are spelled, for the host, the device and C: no torch, no CUDA.
#pragma once

#include <stdint.h>

namespace torchnan::cuda {

// How words are spelled. A word w counts with the magnitude (w + bias) & mask, unsigned and in its own width, as in
// FloatFormat; a complex element has two words.
enum class FloatEncoding : uint8_t {
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kFloat8_e5m2,
  kFloat8_e4m3fn,
  kFloat8_fnuz,  // e4m3fnuz and e5m2fnuz
  kFloat8_e8m0fnu,
  kCount,
};

struct EncodingTraits {
  uint32_t word_bytes;
  uint64_t bias;
  uint64_t mask;
  uint64_t infinity;  // the first magnitude that is not finite
};

template <FloatEncoding kSpelling>
struct Facts;  // the same numbers as float_format() has; the tests compare them

template <>
struct Facts<FloatEncoding::kFloat16> {
  using Word = uint16_t;
  static constexpr Word kBias = 0, kMask = 0x7fff, kInfinity = 0x7c00;
};
template <>
struct Facts<FloatEncoding::kBFloat16> {
  using Word = uint16_t;
  static constexpr Word kBias = 0, kMask = 0x7fff, kInfinity = 0x7f80;
};
template <>
struct Facts<FloatEncoding::kFloat32> {
  using Word = uint32_t;
  static constexpr Word kBias = 0, kMask = 0x7fffffff, kInfinity = 0x7f800000;
};
template <>
struct Facts<FloatEncoding::kFloat64> {
  using Word = uint64_t;
  static constexpr Word kBias = 0, kMask = 0x7fffffffffffffff, kInfinity = 0x7ff0000000000000;
};
template <>
struct Facts<FloatEncoding::kFloat8_e5m2> {
  using Word = uint8_t;
  static constexpr Word kBias = 0, kMask = 0x7f, kInfinity = 0x7c;
};
template <>
struct Facts<FloatEncoding::kFloat8_e4m3fn> {
  using Word = uint8_t;
  static constexpr Word kBias = 0, kMask = 0x7f, kInfinity = 0x7f;
};
template <>
struct Facts<FloatEncoding::kFloat8_fnuz> {
  using Word = uint8_t;
  static constexpr Word kBias = 0x7f, kMask = 0xff, kInfinity = 0xff;
};
template <>
struct Facts<FloatEncoding::kFloat8_e8m0fnu> {
  using Word = uint8_t;
  static constexpr Word kBias = 0, kMask = 0xff, kInfinity = 0xff;
};

template <FloatEncoding kSpelling>
constexpr EncodingTraits facts() {
  using Of = Facts<kSpelling>;
  return {sizeof(typename Of::Word), Of::kBias, Of::kMask, Of::kInfinity};
}

// In the order of FloatEncoding.
constexpr EncodingTraits kFacts[] = {
    facts<FloatEncoding::kFloat16>(),     facts<FloatEncoding::kBFloat16>(),
    facts<FloatEncoding::kFloat32>(),     facts<FloatEncoding::kFloat64>(),
    facts<FloatEncoding::kFloat8_e5m2>(), facts<FloatEncoding::kFloat8_e4m3fn>(),
    facts<FloatEncoding::kFloat8_fnuz>(), facts<FloatEncoding::kFloat8_e8m0fnu>(),
};
static_assert(sizeof(kFacts) / sizeof(kFacts[0]) == static_cast<int>(FloatEncoding::kCount), "one for each");

constexpr const EncodingTraits& facts_of(FloatEncoding spelling) { return kFacts[static_cast<int>(spelling)]; }

}  // namespace torchnan::cuda
