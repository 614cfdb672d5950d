// The range of each dtype, and how far a computed value may be from the exact one.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cstdint>
#include <limits>

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <torchnan/value.h>

#include "base/strict_floats.h"

namespace torchnan {

// Three quarters of the range are reserved, because kernels add in different orders.
inline constexpr DtypeRange kFloatRange{FLT_MAX / 4, 0x1p-24, FLT_MIN, 0x1p-24, 0x1p-149};
// The bounds themselves are computed in double, by processors that may flush; so the step is the smallest normal
// number.
inline constexpr DtypeRange kDoubleRange{DBL_MAX / 4, 0x1p-53, DBL_MIN, 0x1p-53, DBL_MIN};
inline constexpr DtypeRange kBFloat16Range{FLT_MAX / 4, 0x1p-8, FLT_MIN, 0x1p-24, 0x1p-133};
inline constexpr DtypeRange kHalfRange{65504, 0x1p-11, 0x1p-14, 0x1p-24, 0x1p-24};
inline constexpr DtypeRange kNoRange{};
// For the float in which kernels compute with 16-bit types.
inline constexpr DtypeRange kWideRange{FLT_MAX / 4, 0x1p-24, FLT_MIN, 0x1p-24, 0x1p-149, /*is_stored=*/false};

inline const DtypeRange& range_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return kFloatRange;
    case c10::ScalarType::Double:
      return kDoubleRange;
    case c10::ScalarType::BFloat16:
      return kBFloat16Range;
    case c10::ScalarType::Half:
      return kHalfRange;
    default:
      return kNoRange;
  }
}

// Returns the range for a result that is computed in one dtype and stored in another.
inline DtypeRange narrower(const DtypeRange& a, const DtypeRange& b) {
  return {std::min(a.limit, b.limit), std::max(a.unit, b.unit), std::max(a.tiny, b.tiny),
          std::max(a.epsilon, b.epsilon), std::max(a.step, b.step)};
}

// Widens a bound by the few roundings by which a computed result may exceed the exact one.
inline double with_rounding_margin(double max_abs, const DtypeRange& range) {
  return max_abs * (1 + 16 * range.unit) + range.tiny;
}

// Returns the largest finite number of a dtype with bounds narrower than a double; infinity for others.
inline double largest_number(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return FLT_MAX;
    case c10::ScalarType::BFloat16:
      return 0x1.fep127;
    case c10::ScalarType::Half:
      return 65504;
    default:
      return std::numeric_limits<double>::infinity();
  }
}

// Returns the largest |x| of an integer dtype; 0 for others.
inline double largest_integer(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Bool:
      return 1;
    case c10::ScalarType::Byte:
      return 0xff;
    case c10::ScalarType::Char:
      return 0x80;
    case c10::ScalarType::Short:
      return 0x8000;
    case c10::ScalarType::UInt16:
      return 0xffff;
    case c10::ScalarType::Int:
      return 0x1p31;
    case c10::ScalarType::UInt32:
      return 0x1p32;
    case c10::ScalarType::Long:
      return 0x1p63;
    case c10::ScalarType::UInt64:
      return 0x1p64;
    default:
      return 0;
  }
}

}  // namespace torchnan
