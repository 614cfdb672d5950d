// Records the bounds from rules beside the actual results, so that tests can check every rule.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include <torchnan/bounds.h>
#include <torchnan/export.h>

#include "base/fork_safe_mutex.h"

namespace torchnan {

struct BoundSample {
  std::string op;
  int64_t output = 0;
  double bound = 0;    // including the rounding margin
  double max_abs = 0;  // of the result; infinite if it is not finite
  double limit = 0;    // of its dtype: a bound above it proves nothing
  bool nonnegative = false;
  double min_value = 0;
};

// Process-wide; disabled by default.
class TORCHNAN_API BoundAudit {
 public:
  bool enabled() const noexcept { return enabled_.load(std::memory_order_relaxed); }
  void enable(bool enabled);
  void add(BoundSample sample);
  std::vector<BoundSample> drain();

 private:
  std::atomic<bool> enabled_{false};
  ForkSafeMutex mutex_;
  std::vector<BoundSample> samples_;
};

TORCHNAN_API BoundAudit& bound_audit();

}  // namespace torchnan
