// The encoding of each floating-point dtype.
#pragma once

#include <cstdint>
#include <optional>

#include <c10/core/ScalarType.h>

#include "scan/float_encoding.h"
#include "scan/strict_floats.h"

namespace torchnan {

// Returns nothing for dtypes that cannot hold a NaN or an Inf (integers, bool, quantized, float4).
inline std::optional<FloatEncoding> encoding_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Half:
    case c10::ScalarType::ComplexHalf:
      return FloatEncoding::kFloat16;
    case c10::ScalarType::BFloat16:
      return FloatEncoding::kBFloat16;
    case c10::ScalarType::Float:
    case c10::ScalarType::ComplexFloat:
      return FloatEncoding::kFloat32;
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexDouble:
      return FloatEncoding::kFloat64;
    case c10::ScalarType::Float8_e5m2:
      return FloatEncoding::kFloat8_e5m2;
    case c10::ScalarType::Float8_e4m3fn:
      return FloatEncoding::kFloat8_e4m3fn;
    case c10::ScalarType::Float8_e4m3fnuz:
    case c10::ScalarType::Float8_e5m2fnuz:
      return FloatEncoding::kFloat8_fnuz;
    case c10::ScalarType::Float8_e8m0fnu:
      return FloatEncoding::kFloat8_e8m0fnu;
    default:
      return std::nullopt;
  }
}

struct FloatFormat : EncodingTraits {
  int words_per_element = 1;  // 2 for complex

  bool has_infinity() const { return first_nan != infinity; }
  int element_bytes() const { return word_bytes * words_per_element; }
};

// Returns nothing where encoding_of() does.
inline std::optional<FloatFormat> float_format(c10::ScalarType dtype) {
  const auto encoding = encoding_of(dtype);
  if (!encoding) return std::nullopt;
  return FloatFormat{traits_of(*encoding), c10::isComplexType(dtype) ? 2 : 1};
}

}  // namespace torchnan
