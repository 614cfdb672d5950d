#include "origin/record.h"

namespace torchnan {

void Root::enter(Entry entry) {
  const std::lock_guard lock(mutex_);
  if (!entry_) entry_ = std::move(entry);
}

std::optional<Entry> Root::entry() const {
  const std::lock_guard lock(mutex_);
  return entry_;
}

std::shared_ptr<const Record> Record::extended(Step step, bool moves_values) const {
  auto next = std::make_shared<Record>(*this);
  if (next->steps_.size() == kKept) {
    next->steps_.back() = step;
    ++next->omitted_;
  } else {
    next->steps_.push_back(step);
  }
  if (!computed_ && !moves_values) {
    next->computed_ = true;
    next->first_computation_ = step;
  }
  return next;
}

}  // namespace torchnan
