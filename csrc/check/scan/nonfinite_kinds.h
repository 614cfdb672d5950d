// The kinds of non-finite values, and their counts.
#pragma once

#include <cstdint>

#include "base/strict_floats.h"

namespace torchnan {

// A set of kinds.
class NonfiniteKinds {
 public:
  constexpr NonfiniteKinds() = default;
  // Without a branch, for loops over many words.
  constexpr NonfiniteKinds(bool nan, bool posinf, bool neginf)
      : bits_(static_cast<uint8_t>(nan * kNaN | posinf * kPosInf | neginf * kNegInf)) {}
  static constexpr NonfiniteKinds only_nan() { return NonfiniteKinds(kNaN); }
  static constexpr NonfiniteKinds only_posinf() { return NonfiniteKinds(kPosInf); }
  static constexpr NonfiniteKinds only_neginf() { return NonfiniteKinds(kNegInf); }
  static constexpr NonfiniteKinds only_inf() { return NonfiniteKinds(kPosInf | kNegInf); }

  // Every kind, or none: a mask, for loops without a branch.
  static constexpr NonfiniteKinds all_if(bool condition) { return NonfiniteKinds(-static_cast<int>(condition)); }

  constexpr bool nan() const { return (bits_ & kNaN) != 0; }
  constexpr bool posinf() const { return (bits_ & kPosInf) != 0; }
  constexpr bool neginf() const { return (bits_ & kNegInf) != 0; }
  constexpr bool inf() const { return posinf() || neginf(); }
  constexpr bool any() const { return bits_ != 0; }

  constexpr NonfiniteKinds operator|(NonfiniteKinds other) const { return NonfiniteKinds(bits_ | other.bits_); }
  constexpr NonfiniteKinds operator&(NonfiniteKinds other) const { return NonfiniteKinds(bits_ & other.bits_); }
  constexpr NonfiniteKinds without(NonfiniteKinds other) const { return NonfiniteKinds(bits_ & ~other.bits_); }
  constexpr NonfiniteKinds& operator|=(NonfiniteKinds other) { return *this = *this | other; }
  constexpr bool operator==(const NonfiniteKinds&) const = default;

 private:
  static constexpr int kNaN = 1;
  static constexpr int kPosInf = 2;
  static constexpr int kNegInf = 4;

  constexpr explicit NonfiniteKinds(int bits) : bits_(static_cast<uint8_t>(bits)) {}
  uint8_t bits_ = 0;
};

// The number of words of each kind.
struct Counts {
  int64_t nan = 0;
  int64_t posinf = 0;
  int64_t neginf = 0;

  int64_t all() const { return nan + posinf + neginf; }
  Counts& operator+=(const Counts& other) {
    nan += other.nan;
    posinf += other.posinf;
    neginf += other.neginf;
    return *this;
  }
};

}  // namespace torchnan
