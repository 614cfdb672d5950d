// What each dtype can hold, and how far a computed value may be from the exact one.
#pragma once

#include <cfloat>
#include <cstdint>

#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "scan/strict_floats.h"

namespace torchnan {

struct DtypeRange {
  double limit = 0;    // a result whose bound is at most this is finite; 0: bounds say nothing of this dtype
  double unit = 0;     // unit roundoff
  double tiny = 0;     // absolute: where relative rounding ends
  double epsilon = 0;  // unit roundoff of what sums are accumulated in
};

// A quarter of the range is kept free for what a kernel adds up on its way to a smaller result.
inline DtypeRange range_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return {FLT_MAX / 4, 0x1p-24, FLT_MIN, 0x1p-24};
    case c10::ScalarType::Double:
      return {DBL_MAX / 4, 0x1p-53, DBL_MIN, 0x1p-53};
    case c10::ScalarType::BFloat16:
      return {FLT_MAX / 4, 0x1p-8, FLT_MIN, 0x1p-24};
    case c10::ScalarType::Half:
      return {65504, 0x1p-11, 0x1p-14, 0x1p-24};
    default:
      return {};
  }
}

// A computed result may be a few roundings above the exact one.
inline double with_rounding_margin(double max_abs, const DtypeRange& range) {
  return max_abs * (1 + 16 * range.unit) + range.tiny;
}

// The largest |x| of an integer dtype; 0 for others.
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
