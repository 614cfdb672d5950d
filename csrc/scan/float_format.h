// How each floating-point dtype spells its non-finite values.
#pragma once

#include <cstdint>
#include <optional>

#include <c10/core/ScalarType.h>

#include "scan/strict_floats.h"

namespace torchnan {

// A word w is non-finite if and only if ((w + bias) & mask) >= infinity, unsigned and in the word's width.
// The mask drops the sign, so the largest masked word of a tensor is also its largest magnitude.
// The bias serves the "fnuz" formats, whose only NaN is the bit pattern of minus zero.
struct FloatFormat {
  int word_bytes = 0;
  int words_per_element = 1;  // 2 for complex
  uint64_t bias = 0;
  uint64_t mask = 0;
  uint64_t infinity = 0;   // the first masked word that is not finite
  uint64_t first_nan = 0;  // the first masked word that is a NaN; equal to infinity where there is no Inf

  bool has_infinity() const { return first_nan != infinity; }
  int element_bytes() const { return word_bytes * words_per_element; }
};

// Absent for dtypes that cannot hold a NaN or an Inf (integers, bool, quantized, float4).
inline std::optional<FloatFormat> float_format(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Half:
      return FloatFormat{2, 1, 0, 0x7fff, 0x7c00, 0x7c01};
    case c10::ScalarType::BFloat16:
      return FloatFormat{2, 1, 0, 0x7fff, 0x7f80, 0x7f81};
    case c10::ScalarType::Float:
      return FloatFormat{4, 1, 0, 0x7fffffff, 0x7f800000, 0x7f800001};
    case c10::ScalarType::Double:
      return FloatFormat{8, 1, 0, 0x7fffffffffffffff, 0x7ff0000000000000, 0x7ff0000000000001};
    case c10::ScalarType::ComplexHalf:
      return FloatFormat{2, 2, 0, 0x7fff, 0x7c00, 0x7c01};
    case c10::ScalarType::ComplexFloat:
      return FloatFormat{4, 2, 0, 0x7fffffff, 0x7f800000, 0x7f800001};
    case c10::ScalarType::ComplexDouble:
      return FloatFormat{8, 2, 0, 0x7fffffffffffffff, 0x7ff0000000000000, 0x7ff0000000000001};
    case c10::ScalarType::Float8_e5m2:
      return FloatFormat{1, 1, 0, 0x7f, 0x7c, 0x7d};
    case c10::ScalarType::Float8_e4m3fn:  // finite only up to 448, one NaN, no Inf
      return FloatFormat{1, 1, 0, 0x7f, 0x7f, 0x7f};
    case c10::ScalarType::Float8_e4m3fnuz:
    case c10::ScalarType::Float8_e5m2fnuz:
      return FloatFormat{1, 1, 0x7f, 0xff, 0xff, 0xff};
    case c10::ScalarType::Float8_e8m0fnu:  // an exponent without sign
      return FloatFormat{1, 1, 0, 0xff, 0xff, 0xff};
    default:
      return std::nullopt;
  }
}

}  // namespace torchnan
