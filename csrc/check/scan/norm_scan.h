// Computes the 2-norm and the largest magnitude of contiguous memory, in one pass.
#pragma once

#include <cstdint>

#include <c10/core/ScalarType.h>

namespace torchnan {

// The 2-norm and the largest magnitude of any number of elements, accumulated part by part. Values whose squares a
// double cannot hold are scaled first, so the norm is right whenever it fits into a double.
class NormAndMax {
 public:
  NormAndMax() = default;
  NormAndMax(double max_abs, double squares) : max_abs_(max_abs), squares_(squares) {}
  // For values too large or too small to be squared: `squares` is the sum for the values times 2^-600 or 2^600.
  static NormAndMax from_large(double max_abs, double squares);
  static NormAndMax from_small(double max_abs, double squares);

  // Returns the largest |x| (for complex numbers: of either part); NaN if there is a NaN, else infinite if there is an
  // Inf.
  double max_abs() const { return max_abs_; }
  // Likewise NaN or infinite.
  double norm() const;

  NormAndMax& operator+=(const NormAndMax& other);
  // Returns the values for `copies` repetitions of the elements.
  NormAndMax times(int64_t copies) const;

 private:
  double max_abs_ = 0;
  double squares_ = 0;
  double large_squares_ = 0;
  double small_squares_ = 0;
};

// Scans `words` words at `data`, which need only be aligned to the word; a complex element has two. Squares are summed
// in double precision, in an order that depends only on their number. `dtype` must have a FloatFormat.
NormAndMax scan_norm(const void* data, int64_t words, c10::ScalarType dtype);

}  // namespace torchnan
