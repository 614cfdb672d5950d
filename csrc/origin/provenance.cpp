#include "origin/provenance.h"

#include <algorithm>

#include "origin/replayed_region.h"

namespace torchnan {

void OriginRecord::enter(Entry entry) {
  auto mine = std::make_unique<const Entry>(std::move(entry));
  const Entry* nobodys = nullptr;
  if (entry_.compare_exchange_strong(nobodys, mine.get(), std::memory_order_acq_rel)) mine.release();
}

Cause Cause::extended(Step step, bool is_data_movement, NonfiniteKinds kinds_there) const {
  Cause next = *this;
  next.kinds = kinds_there;
  if (next.steps.size() == kKeptSteps) {
    next.steps.back() = step;
    ++next.omitted;
  } else {
    next.steps.push_back(step);
  }
  if (first_nan == nullptr && !origin->kinds.nan() && kinds_there.nan()) {
    Site site;
    site.live = step.site;
    next.first_nan = std::make_shared<const FirstNan>(FirstNan{step.plan, std::move(site)});
  }
  if (!first_computation && !is_data_movement) {
    next.first_computation = step;
    next.region_of_computation = replayed_region();
  }
  return next;
}

Provenance::Provenance(std::vector<Cause> causes, bool is_pending)
    : causes_(std::move(causes)), is_pending_(is_pending) {
  std::stable_sort(causes_.begin(), causes_.end(),
                   [](const Cause& a, const Cause& b) { return a.origin->takes_precedence_over(*b.origin); });
  const auto same_origin = [](const Cause& a, const Cause& b) { return a.origin == b.origin; };
  causes_.erase(std::unique(causes_.begin(), causes_.end(), same_origin), causes_.end());
  if (causes_.size() > kMaxCauses) causes_.erase(causes_.begin() + kMaxCauses, causes_.end());
}

}  // namespace torchnan
