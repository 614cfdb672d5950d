// The range of each dtype, and how far a computed value may be from the exact one.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cstdint>
#include <limits>

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "scan/strict_floats.h"

namespace torchnan {

struct DtypeRange {
  double limit = 0;    // a result within this bound is finite; 0 for dtypes without bounds
  double unit = 0;     // unit roundoff
  double tiny = 0;     // absolute error where the relative one ends
  double epsilon = 0;  // unit roundoff of the type that sums are accumulated in
  double step = 0;     // the smallest subnormal: no rounding below `tiny` is off by more
};

// Reserves three quarters of the range for intermediate sums that are larger than the result.
inline DtypeRange range_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return {FLT_MAX / 4, 0x1p-24, FLT_MIN, 0x1p-24, 0x1p-149};
    case c10::ScalarType::Double:
      return {DBL_MAX / 4, 0x1p-53, DBL_MIN, 0x1p-53, 0x1p-1074};
    case c10::ScalarType::BFloat16:
      return {FLT_MAX / 4, 0x1p-8, FLT_MIN, 0x1p-24, 0x1p-133};
    case c10::ScalarType::Half:
      return {65504, 0x1p-11, 0x1p-14, 0x1p-24, 0x1p-24};
    default:
      return {};
  }
}

// Returns what holds for a result that is computed in one dtype and stored in another.
inline DtypeRange narrower(const DtypeRange& a, const DtypeRange& b) {
  return {std::min(a.limit, b.limit), std::max(a.unit, b.unit), std::max(a.tiny, b.tiny),
          std::max(a.epsilon, b.epsilon), std::max(a.step, b.step)};
}

// Widens a bound by the few roundings that a computed result may be above the exact one.
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
