// Assumed bounds of results on devices, until a result is found to be larger.
//
// While all values are finite, a scan on a device reports nothing to the host, so the host has no measured bounds
// there. Bounds start from assumptions instead, which the scan checks: it raises the alarm at the first value above the
// assumed one. Proofs made from the assumption since then are void, and later results of that call site are assumed to
// be larger. If infinities of a call site have done no harm several times, nothing is assumed of its results, and their
// infinities raise no alarm: each alarm makes the host wait. They are still found when something else does.
#pragma once

#include <cstdint>
#include <unordered_map>

#include <c10/core/ScalarType.h>

#include "device/event.h"

namespace torchnan {

// Not thread-safe.
class Assumptions {
 public:
  // Most results of a healthy program are far below these limits, and in the wide dtypes several matrix products of
  // such factors are still far from overflow.
  static constexpr double kWide = 0x1p20;
  static constexpr double kHalf = 0x1p10;
  // Every matrix product has a parameter as a factor. Parameters of healthy models seldom exceed a few units.
  static constexpr double kParameter = 0x1p5;

  // Returns the assumed bound of an event's result; infinite where nothing is assumed.
  double of(const Event& event) const {
    if (!raised_.empty()) {
      const auto raised = raised_.find(key_of(event));
      if (raised != raised_.end()) return raised->second;
    }
    if (event.tensor.is_parameter) return kParameter;
    return event.tensor.dtype == c10::ScalarType::Half ? kHalf : kWide;
  }

  // Records that a result of the event was found to be as large as `max_abs`.
  void raise(const Event& event, double max_abs);

  // Records that infinities of the event's result are gone, and have done no harm.
  void count_harmless(const Event& event);

  // Whether this has happened often enough.
  bool expects_infinity(const Event& event) const {
    if (harmless_.empty() || !may_expect_infinity(event)) return false;
    const auto counted = harmless_.find(key_of(event));
    return counted != harmless_.end() && counted->second >= kTimesHarmless;
  }

  size_t raised() const { return raised_.size(); }

 private:
  static constexpr int kTimesHarmless = 3;

  static uint64_t key_of(const Event& event);
  static bool may_expect_infinity(const Event& event);

  std::unordered_map<uint64_t, double> raised_;
  std::unordered_map<uint64_t, int> harmless_;
};

}  // namespace torchnan
