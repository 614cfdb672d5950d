// What rules have claimed, beside what came out: for the tests that hold every rule to its word.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include <torchnan/bounds.h>
#include <torchnan/export.h>

#include "process/fork_safe_mutex.h"

namespace torchnan {

struct BoundSample {
  std::string op;
  int64_t output = 0;
  double bound = 0;    // rounding included
  double max_abs = 0;  // of the result; infinite if something in it is not finite
  double limit = 0;    // of its dtype: a bound above it claims nothing
  bool nonnegative = false;
  double min_value = 0;
};

// Of the process. Keeps nothing until it is told to.
class TORCHNAN_API BoundAudit {
 public:
  bool wanted() const noexcept { return wanted_.load(std::memory_order_relaxed); }
  void want(bool wanted);
  void add(BoundSample claim);
  std::vector<BoundSample> take();

 private:
  std::atomic<bool> wanted_{false};
  ForkSafeMutex mutex_;
  std::vector<BoundSample> claims_;
};

TORCHNAN_API BoundAudit& bound_audit();

}  // namespace torchnan
