#include "origin/lineage.h"

#include <algorithm>

#include <torch/csrc/autograd/variable.h>

#include "check/tensor_check.h"

namespace torchnan {
namespace {

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return impl->has_storage() ? impl->unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

}  // namespace

Lineage::Region Lineage::region_of(const at::Tensor& tensor, RecordPtr record) {
  Region region;
  region.dtype = tensor.scalar_type();
  region.keys = tensor.unsafeGetTensorImpl()->key_set();
  region.sizes = tensor.sizes().vec();
  region.strides = tensor.strides().vec();
  region.offset = tensor.storage_offset();
  int64_t span = 1;
  for (size_t d = 0; d < region.sizes.size(); ++d) span += (region.sizes[d] - 1) * region.strides[d];
  const int64_t item = static_cast<int64_t>(tensor.itemsize());
  region.begin = region.offset * item;
  region.end = region.begin + span * item;
  region.dense = tensor.is_non_overlapping_and_dense();
  region.record = std::move(record);
  region.tensor = tensor.getIntrusivePtr();
  return region;
}

at::Tensor Lineage::tensor_of(const Region& region, c10::intrusive_ptr<c10::StorageImpl> storage) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), region.keys,
                                                         c10::scalarTypeToTypeMeta(region.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(region.sizes, region.strides, region.offset);
  return tensor;
}

Lineage::RecordPtr Lineage::find(const at::Tensor& tensor) const {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr) return nullptr;
  const Region wanted = region_of(tensor, nullptr);
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(storage);
  if (entry == entries_.end()) return nullptr;
  RecordPtr best;
  for (const Region& region : entry->second.regions) {
    if (region.end <= wanted.begin || wanted.end <= region.begin) continue;
    if (best == nullptr || region.record->root()->outranks(*best->root())) best = region.record;
  }
  return best;
}

bool Lineage::knows(const at::Tensor& tensor) const {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr) return false;
  const std::lock_guard lock(mutex_);
  return entries_.count(storage) != 0;
}

void Lineage::remember(const at::Tensor& tensor, RecordPtr record) {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr) return;
  Region region = region_of(tensor, std::move(record));
  c10::weak_intrusive_ptr<c10::StorageImpl> weak(tensor.storage().getWeakStorageImpl());
  std::vector<Region> overwritten;  // released after the lock
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_.try_emplace(storage, Entry{std::move(weak), {}}).first->second;
  auto& regions = entry.regions;
  const auto gone = std::stable_partition(regions.begin(), regions.end(), [&](const Region& old) {
    return !(region.dense && region.begin <= old.begin && old.end <= region.end);
  });
  std::move(gone, regions.end(), std::back_inserter(overwritten));
  regions.erase(gone, regions.end());
  if (regions.size() == kMaxRegions) {
    overwritten.push_back(std::move(regions.front()));
    regions.erase(regions.begin());
  }
  regions.push_back(std::move(region));
  size_ = entries_.size();
}

void Lineage::settle(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr || !knows(tensor)) return;
  const Region written = region_of(tensor, nullptr);
  std::vector<Region> overwritten;
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(storage);
  if (entry == entries_.end()) return;
  auto& regions = entry->second.regions;
  const auto gone = std::stable_partition(regions.begin(), regions.end(), [&](const Region& old) {
    if (old.end <= written.begin || written.end <= old.begin) return true;
    if (written.dense && written.begin <= old.begin && old.end <= written.end) return false;
    auto owner = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(const_cast<c10::StorageImpl*>(storage));
    return kinds_of(tensor_of(old, std::move(owner))).any();  // the caller holds the storage too
  });
  std::move(gone, regions.end(), std::back_inserter(overwritten));
  regions.erase(gone, regions.end());
  if (regions.empty()) entries_.erase(entry);
  size_ = entries_.size();
}

std::vector<Lineage::Alive> Lineage::alive() const {
  struct Candidate {
    c10::intrusive_ptr<c10::StorageImpl> storage;
    std::vector<Region> regions;
  };
  std::vector<Candidate> candidates;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, entry] : entries_) candidates.push_back({entry.storage.lock(), entry.regions});
  }
  std::vector<Alive> found;
  for (Candidate& candidate : candidates) {
    if (!candidate.storage) continue;
    for (const Region& region : candidate.regions) {
      at::Tensor tensor = tensor_of(region, candidate.storage);
      if (kinds_of(tensor).any()) found.push_back({std::move(tensor), region.record});
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Alive& a, const Alive& b) { return a.record->root()->sequence < b.record->root()->sequence; });
  return found;
}

std::vector<Lineage::Alive> Lineage::made_by(const torch::autograd::Node& node) const {
  std::vector<Alive> candidates;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, entry] : entries_) {
      for (const Region& region : entry.regions) {
        if (auto tensor = region.tensor.lock()) candidates.push_back({at::Tensor(std::move(tensor)), region.record});
      }
    }
  }
  std::vector<Alive> found;
  for (Alive& candidate : candidates) {
    // Not grad_fn(), which may compute the history of a view anew.
    const auto* meta = torch::autograd::impl::get_autograd_meta(candidate.tensor);
    if (meta != nullptr && meta->grad_fn_.get() == &node) found.push_back(std::move(candidate));
  }
  return found;
}

void Lineage::sweep(const std::function<void(const RecordPtr&)>& died) {
  std::vector<Entry> dead;
  {
    const std::lock_guard lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      if (entry->second.storage.expired()) {
        dead.push_back(std::move(entry->second));
        entry = entries_.erase(entry);
      } else {
        ++entry;
      }
    }
    size_ = entries_.size();
  }
  for (const Entry& entry : dead) {
    for (const Region& region : entry.regions) died(region.record);
  }
}

void Lineage::clear() {
  std::unordered_map<const c10::StorageImpl*, Entry> released;
  const std::lock_guard lock(mutex_);
  released.swap(entries_);
  size_ = 0;
}

Lineage& lineage() {
  static auto* made = new Lineage;  // never destroyed: threads may outlive static destructors
  return *made;
}

}  // namespace torchnan
