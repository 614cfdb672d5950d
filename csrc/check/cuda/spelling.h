// What the host knows of tensors, in the words of the scan for CUDA.
#pragma once

#include <optional>

#include "check/cuda/scan_body.h"
#include "check/cuda/scan_table.h"
#include "check/float_format.h"

namespace torchnan::cuda {

// Absent for dtypes that are never scanned, as in float_format(). Complex words are spelled as their parts.
inline std::optional<Spelling> spelling_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Half:
    case c10::ScalarType::ComplexHalf:
      return Spelling::kFloat16;
    case c10::ScalarType::BFloat16:
      return Spelling::kBFloat16;
    case c10::ScalarType::Float:
    case c10::ScalarType::ComplexFloat:
      return Spelling::kFloat32;
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexDouble:
      return Spelling::kFloat64;
    case c10::ScalarType::Float8_e5m2:
      return Spelling::kFloat8_e5m2;
    case c10::ScalarType::Float8_e4m3fn:
      return Spelling::kFloat8_e4m3fn;
    case c10::ScalarType::Float8_e4m3fnuz:
    case c10::ScalarType::Float8_e5m2fnuz:
      return Spelling::kFloat8_fnuz;
    case c10::ScalarType::Float8_e8m0fnu:
      return Spelling::kFloat8_e8m0fnu;
    default:
      return std::nullopt;
  }
}

}  // namespace torchnan::cuda
