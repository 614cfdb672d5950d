// One pass over contiguous memory: how large is what is in it, all together and at most?
#pragma once

#include <cstdint>

#include <c10/core/ScalarType.h>

namespace torchnan {

// The 2-norm and the largest magnitude of any number of elements, added up part by part. Squares that a double cannot
// hold are kept of scaled values, so that the norm is right wherever the norm itself is a double.
class NormAndMax {
 public:
  NormAndMax() = default;
  NormAndMax(double max_abs, double squares) : max_abs_(max_abs), squares_(squares) {}
  // Of values too large or too small to be squared: `squares` is of the values times 2^-600 or 2^600.
  static NormAndMax from_large(double max_abs, double squares);
  static NormAndMax from_small(double max_abs, double squares);

  // The largest |x|, of complex numbers the largest part's; NaN if there is a NaN, else infinite if there is an Inf.
  double max_abs() const { return max_abs_; }
  // likewise NaN or infinite
  double norm() const;

  NormAndMax& operator+=(const NormAndMax& other);
  // Of so many copies of the elements.
  NormAndMax times(int64_t copies) const;

 private:
  double max_abs_ = 0;
  double squares_ = 0;
  double large_squares_ = 0;
  double small_squares_ = 0;
};

// Of `words` words at `data`, which need only be aligned to the word; a complex element has two. Squares are added up
// in double precision, in an order that depends on nothing but their number. `dtype` must have a FloatFormat.
NormAndMax scan_norm(const void* data, int64_t words, c10::ScalarType dtype);

}  // namespace torchnan
