#include "bounds/claims.h"

#include <mutex>
#include <utility>

namespace torchnan {
namespace {

Claims& of_process = *new Claims;  // never destroyed: operators run until the process ends

}  // namespace

void Claims::want(bool wanted) {
  const std::lock_guard lock(mutex_);
  wanted_ = wanted;
  claims_.clear();
}

void Claims::add(Claim claim) {
  const std::lock_guard lock(mutex_);
  claims_.push_back(std::move(claim));
}

std::vector<Claim> Claims::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(claims_, {});
}

Claims& claims() { return of_process; }

}  // namespace torchnan
