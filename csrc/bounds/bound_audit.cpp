#include "bounds/bound_audit.h"

#include <mutex>
#include <utility>

namespace torchnan {
namespace {

BoundAudit& of_process = *new BoundAudit;  // never destroyed: operators run until the process ends

}  // namespace

void BoundAudit::want(bool wanted) {
  const std::lock_guard lock(mutex_);
  wanted_ = wanted;
  claims_.clear();
}

void BoundAudit::add(BoundSample claim) {
  const std::lock_guard lock(mutex_);
  claims_.push_back(std::move(claim));
}

std::vector<BoundSample> BoundAudit::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(claims_, {});
}

BoundAudit& bound_audit() { return of_process; }

}  // namespace torchnan
