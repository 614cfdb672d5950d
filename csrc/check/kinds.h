// Which non-finite values a tensor holds, and how many.
#pragma once

#include <cstdint>

#include "check/strict_floats.h"

namespace torchnan {

// A small set.
class Kinds {
 public:
  constexpr Kinds() = default;
  static constexpr Kinds of_nan() { return Kinds(kNaN); }
  static constexpr Kinds of_posinf() { return Kinds(kPosInf); }
  static constexpr Kinds of_neginf() { return Kinds(kNegInf); }
  static constexpr Kinds of_inf() { return Kinds(kPosInf | kNegInf); }

  constexpr bool nan() const { return (bits_ & kNaN) != 0; }
  constexpr bool posinf() const { return (bits_ & kPosInf) != 0; }
  constexpr bool neginf() const { return (bits_ & kNegInf) != 0; }
  constexpr bool inf() const { return posinf() || neginf(); }
  constexpr bool any() const { return bits_ != 0; }

  constexpr Kinds operator|(Kinds other) const { return Kinds(bits_ | other.bits_); }
  constexpr Kinds operator&(Kinds other) const { return Kinds(bits_ & other.bits_); }
  constexpr Kinds without(Kinds other) const { return Kinds(bits_ & ~other.bits_); }
  constexpr Kinds& operator|=(Kinds other) { return *this = *this | other; }
  constexpr bool operator==(const Kinds&) const = default;

 private:
  static constexpr int kNaN = 1;
  static constexpr int kPosInf = 2;
  static constexpr int kNegInf = 4;

  constexpr explicit Kinds(int bits) : bits_(static_cast<uint8_t>(bits)) {}
  uint8_t bits_ = 0;
};

// How many words there are of each kind.
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
