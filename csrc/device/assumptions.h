// Assumed bounds of results on devices, until a result is found to be larger.
//
// A scan on a device reports nothing to the host while all is well, so that there is nothing to make bounds of. They
// are made of assumptions, which the scan checks: it raises the alarm at the first value above the assumed one. What
// had been proved from it since is then void, and what comes from that call site again is assumed to be larger.
#pragma once

#include <cstdint>
#include <unordered_map>

#include <c10/core/ScalarType.h>

#include "device/event.h"

namespace torchnan {

// Not for several threads at once.
class Assumptions {
 public:
  // Most of what a healthy program computes is far below these, and in the wide dtypes several matrix products of such
  // factors are still far from overflow.
  static constexpr double kWide = 0x1p20;
  static constexpr double kHalf = 0x1p10;
  // Every product of matrices has a parameter for a factor. Those of healthy models are seldom above a few.
  static constexpr double kParameter = 0x1p8;

  // Returns the assumed bound of an event's result; infinite where nothing is assumed.
  double of(const Event& event) const {
    if (!raised_.empty()) {
      const auto raised = raised_.find(place_of(event));
      if (raised != raised_.end()) return raised->second;
    }
    if (event.tensor.is_parameter) return kParameter;
    return event.tensor.dtype == c10::ScalarType::Half ? kHalf : kWide;
  }

  // Records that a result of the event was found to be as large as `most`.
  void raise(const Event& event, double max_abs);

  size_t raised() const { return raised_.size(); }

 private:
  static uint64_t place_of(const Event& event);

  std::unordered_map<uint64_t, double> raised_;
};

}  // namespace torchnan
