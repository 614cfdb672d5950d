// The encoding of each floating-point dtype.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include <c10/core/ScalarType.h>

#include "check/scan/float_encoding.h"
#include "base/strict_floats.h"

namespace torchnan {

// Returns nothing for dtypes that cannot hold a NaN or an Inf (integers, bool, quantized, float4).
constexpr std::optional<FloatEncoding> encoding_of(c10::ScalarType dtype) {
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

// Null where encoding_of() returns nothing.
inline const FloatFormat* float_format(c10::ScalarType dtype) {
  struct Row {
    bool is_known = false;
    FloatFormat format;
  };
  static constexpr auto kRows = [] {
    std::array<Row, static_cast<size_t>(c10::ScalarType::NumOptions)> rows{};
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto type = static_cast<c10::ScalarType>(i);
      const auto encoding = encoding_of(type);
      const bool is_complex = type == c10::ScalarType::ComplexHalf || type == c10::ScalarType::ComplexFloat ||
                              type == c10::ScalarType::ComplexDouble;
      if (encoding) rows[i] = {true, {traits_of(*encoding), is_complex ? 2 : 1}};
    }
    return rows;
  }();
  const Row& row = kRows[static_cast<size_t>(dtype)];
  return row.is_known ? &row.format : nullptr;
}

}  // namespace torchnan
