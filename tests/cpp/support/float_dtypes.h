// The real floating-point dtypes, and the meaning of a bit pattern in each.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include <c10/core/ScalarType.h>

namespace torchnan {

inline constexpr c10::ScalarType kRealDtypes[] = {
    c10::ScalarType::Half,
    c10::ScalarType::BFloat16,
    c10::ScalarType::Float,
    c10::ScalarType::Double,
    c10::ScalarType::Float8_e5m2,
    c10::ScalarType::Float8_e4m3fn,
    c10::ScalarType::Float8_e5m2fnuz,
    c10::ScalarType::Float8_e4m3fnuz,
    c10::ScalarType::Float8_e8m0fnu,
};

template <typename T>
double value_from(uint64_t bits) {
  T value;
  std::memcpy(static_cast<void*>(&value), &bits, sizeof(T));
  return static_cast<double>(static_cast<std::conditional_t<std::is_same_v<T, double>, double, float>>(value));
}

inline double value_of(c10::ScalarType dtype, uint64_t bits) {
  switch (dtype) {
    case c10::ScalarType::Half:
      return value_from<c10::Half>(bits);
    case c10::ScalarType::BFloat16:
      return value_from<c10::BFloat16>(bits);
    case c10::ScalarType::Double:
      return value_from<double>(bits);
    case c10::ScalarType::Float8_e5m2:
      return value_from<c10::Float8_e5m2>(bits);
    case c10::ScalarType::Float8_e4m3fn:
      return value_from<c10::Float8_e4m3fn>(bits);
    case c10::ScalarType::Float8_e5m2fnuz:
      return value_from<c10::Float8_e5m2fnuz>(bits);
    case c10::ScalarType::Float8_e4m3fnuz:
      return value_from<c10::Float8_e4m3fnuz>(bits);
    case c10::ScalarType::Float8_e8m0fnu:
      return value_from<c10::Float8_e8m0fnu>(bits);
    default:
      return value_from<float>(bits);
  }
}

}  // namespace torchnan
