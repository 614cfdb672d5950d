// What rules have claimed, beside what came out: for the tests that hold every rule to its word.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include <torchnan/bounds.h>
#include <torchnan/export.h>

#include "process/fork.h"

namespace torchnan {

struct Claim {
  std::string op;
  int64_t output = 0;
  double bound = 0;  // rounding included
  double most = 0;   // of the result; infinite if something in it is not finite
  double limit = 0;  // of its dtype: a bound above it claims nothing
  bool nonnegative = false;
  double least = 0;
};

// Of the process. Keeps nothing until it is told to.
class TORCHNAN_API Claims {
 public:
  bool wanted() const noexcept { return wanted_.load(std::memory_order_relaxed); }
  void want(bool wanted);
  void add(Claim claim);
  std::vector<Claim> take();

 private:
  std::atomic<bool> wanted_{false};
  Mutex mutex_;
  std::vector<Claim> claims_;
};

TORCHNAN_API Claims& claims();

}  // namespace torchnan
