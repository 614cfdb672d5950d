#include "check/bounds/bound_audit.h"

#include <mutex>
#include <utility>

namespace torchnan {
namespace {

BoundAudit& process_audit = *new BoundAudit;  // never destroyed: operators run until the process ends

}  // namespace

void BoundAudit::enable(bool enabled) {
  const std::lock_guard lock(mutex_);
  enabled_ = enabled;
  samples_.clear();
}

void BoundAudit::add(BoundSample sample) {
  const std::lock_guard lock(mutex_);
  samples_.push_back(std::move(sample));
}

std::vector<BoundSample> BoundAudit::drain() {
  const std::lock_guard lock(mutex_);
  return std::exchange(samples_, {});
}

BoundAudit& bound_audit() { return process_audit; }

}  // namespace torchnan
