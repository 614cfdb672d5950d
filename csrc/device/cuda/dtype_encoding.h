// What the host knows of tensors, in the words of the scan for CUDA.
#pragma once

#include <optional>

#include "device/cuda/scan_body.h"
#include "device/cuda/scan_table.h"
#include "scan/float_format.h"

namespace torchnan::cuda {

// Absent for dtypes that are never scanned, as in float_format(). Complex words are spelled as their parts.
inline std::optional<FloatEncoding> spelling_of(c10::ScalarType dtype) {
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

}  // namespace torchnan::cuda
