// The counts of one thread for one session: written by that thread alone, read by any.
#pragma once

#include <array>
#include <cstddef>

#include <torchnan/stats.h>

#include "base/counter.h"
#include "check/scan/tensor_scan.h"

namespace torchnan {

struct alignas(64) Counters {
#define TORCHNAN_DECLARE_COUNTER(name) Counter name;
  TORCHNAN_THREAD_COUNTS(TORCHNAN_DECLARE_COUNTER)
#undef TORCHNAN_DECLARE_COUNTER
  std::array<Counter, static_cast<size_t>(Skip::kCount)> skipped;

  // Count a tensor: that was scanned, proved finite by a bound, or neither.
  void count_scanned(int64_t scanned_bytes) {
    checked.add(1);
    bytes.add(scanned_bytes);
  }
  void count_proved(int64_t proved_bytes, int64_t results = 1) {
    checked.add(results);
    proved.add(results);
    bytes_proved.add(results * proved_bytes);
  }
  void count_skipped(Skip reason) { skipped[static_cast<size_t>(reason)].add(1); }

  // Called by a thread that may write to both.
  Counters& operator+=(const Counters& other) {
#define TORCHNAN_ADD_COUNTER(name) name.add(other.name.value());
    TORCHNAN_THREAD_COUNTS(TORCHNAN_ADD_COUNTER)
#undef TORCHNAN_ADD_COUNTER
    for (size_t reason = 0; reason < skipped.size(); ++reason) skipped[reason].add(other.skipped[reason].value());
    return *this;
  }

  // Adds these counts to those of the session.
  void add_to(Stats& stats) const {
#define TORCHNAN_ADD_COUNT(name) stats.name += name.value();
    TORCHNAN_THREAD_COUNTS(TORCHNAN_ADD_COUNT)
#undef TORCHNAN_ADD_COUNT
    for (size_t reason = 1; reason < skipped.size(); ++reason) {
      const int64_t count = skipped[reason].value();
      if (count > 0) stats.skipped[name_of(static_cast<Skip>(reason))] += count;
    }
  }
};

}  // namespace torchnan
