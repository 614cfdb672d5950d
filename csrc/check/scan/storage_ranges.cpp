#include "check/scan/storage_ranges.h"

#include <algorithm>

#include "check/scan/storage_of.h"
#include "check/scan/tensor_scan.h"

namespace torchnan {

StorageRange storage_range(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr) {  // of a sparse tensor, the values
    const at::Tensor values = scannable_values(tensor);
    if (values.defined()) storage = storage_of(values);
  }
  if (storage == nullptr || storage->data_ptr().get() == nullptr) return {};
  const auto begin = reinterpret_cast<uintptr_t>(storage->data_ptr().get());
  return {begin, begin + storage->nbytes()};
}

void StorageRanges::add(const at::Tensor& tensor) {
  const StorageRange range = storage_range(tensor);
  if (range.begin < range.end) ranges_.push_back(range);
}

void StorageRanges::sort() {
  std::sort(ranges_.begin(), ranges_.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  size_t kept = 0;
  for (size_t i = 1; i < ranges_.size(); ++i) {
    if (ranges_[i].begin < ranges_[kept].end) {
      ranges_[kept].end = std::max(ranges_[kept].end, ranges_[i].end);
    } else {
      ranges_[++kept] = ranges_[i];
    }
  }
  if (!ranges_.empty()) ranges_.resize(kept + 1);
}

bool StorageRanges::overlap(const at::Tensor& tensor) const {
  const StorageRange range = storage_range(tensor);
  const auto next = std::partition_point(ranges_.begin(), ranges_.end(),
                                         [&](const StorageRange& one) { return one.end <= range.begin; });
  return next != ranges_.end() && next->overlaps(range);
}

}  // namespace torchnan
