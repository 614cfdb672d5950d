#include "origin/nonfinite_registry.h"

#include <algorithm>
#include <utility>

#include <torch/csrc/autograd/variable.h>

#include "base/work_counters.h"
#include "origin/elementwise_attribution.h"
#include "check/scan/storage_of.h"
#include "check/scan/tensor_scan.h"
#include "base/runtime.h"

namespace torchnan {
namespace {

NonfiniteRegistry& of_process = *new NonfiniteRegistry;  // never destroyed: threads may outlive static destructors

// Values that were not read before are gone unread.
void mark_overwritten(const Provenance& provenance) {
  for (const Cause& cause : provenance.causes()) cause.origin->overwritten = true;
}

template <typename Regions>
void mark_overwritten(const Regions& regions) {
  for (const auto& region : regions) mark_overwritten(*region.provenance);
}

// The part of a region that lies in others, as a dense tensor of its dtype; the region itself if it has gaps.
MemoryRegion part_within(const MemoryRegion& region, const MemoryRegion& bytes) {
  MemoryRegion part = region;
  if (!region.dense) return part;
  const auto item = static_cast<int64_t>(c10::elementSize(region.dtype));
  const int64_t first = std::max(region.begin, bytes.begin) / item;
  const int64_t last = (std::min(region.end, bytes.end) + item - 1) / item;
  part.offset = first;
  part.sizes = {last - first};
  part.strides = {1};
  return part;
}

}  // namespace

NonfiniteRegistry::ProvenancePtr joined(const Provenance& a, const Provenance& b) {
  std::vector<Cause> causes = a.causes();
  causes.insert(causes.end(), b.causes().begin(), b.causes().end());
  return std::make_shared<Provenance>(std::move(causes), a.pending() || b.pending());
}

// Whether the older region has a non-finite value that the newer write has not replaced.
bool NonfiniteRegistry::has_values_outside(const Region& old, const MemoryRegion& written,
                                           const c10::StorageImpl* storage) {
  const at::Tensor values = values_of(old, storage);
  if (!kinds_of(values).any()) return false;
  if (old.dtype != written.dtype) return true;
  return !lies_within(values, *kinds_by_element(values), {NestedStrides(written)});
}

// Keeps both causes, but no longer knows where each of them is.
void NonfiniteRegistry::merge_last(std::vector<Region>& regions) {
  const Region& last = regions.back();
  Region merged = regions[regions.size() - 2];
  merged.provenance = joined(*merged.provenance, *last.provenance);
  merged.merge(last);
  regions.pop_back();
  regions.back() = std::move(merged);
}

// Moves the regions for which `is_gone` is true to `overwritten`. If anything throws, it does so before the first is
// moved.
template <typename IsGone>
void NonfiniteRegistry::take(std::vector<Region>& regions, std::vector<Region>& overwritten, IsGone&& is_gone) {
  std::vector<bool> gone;
  for (const Region& region : regions) gone.push_back(is_gone(region));
  overwritten.reserve(regions.size());
  size_t kept = 0;
  for (size_t i = 0; i < regions.size(); ++i) {
    if (gone[i]) {
      overwritten.push_back(std::move(regions[i]));
    } else if (kept++ != i) {
      regions[kept - 1] = std::move(regions[i]);
    }
  }
  regions.erase(regions.begin() + static_cast<std::ptrdiff_t>(kept), regions.end());
}

NonfiniteRegistry::Region::Region(const at::Tensor& values, ProvenancePtr of_values)
    : MemoryRegion(values), provenance(std::move(of_values)) {
  // Only for produced_by(): PyTorch refuses to swap a tensor that has weak references.
  if (!runtime().reports_backward_roots()) tensor = values.getIntrusivePtr();
}

// The caller holds the storage, too.
at::Tensor NonfiniteRegistry::values_of(const Region& region, const c10::StorageImpl* storage) {
  return region.tensor_in(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(const_cast<c10::StorageImpl*>(storage)));
}

NonfiniteRegistry::ProvenancePtr NonfiniteRegistry::find(const at::Tensor& tensor) const {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr) return nullptr;
  const MemoryRegion wanted(tensor);
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(storage);
  if (entry == entries_.end()) return nullptr;
  ProvenancePtr found;
  std::vector<NestedStrides> newer;
  std::shared_ptr<const ElementKinds> kinds;  // read only if there are two to choose from
  bool is_read = false;
  const auto is_of_newer = [&] {
    if (!is_read && kinds_of(tensor).any()) kinds = kinds_by_element(tensor);
    is_read = true;
    return kinds != nullptr && lies_within(tensor, *kinds, newer);  // null: on a device, or not there yet
  };
  const auto& regions = entry->second.regions;
  for (auto region = regions.rbegin(); region != regions.rend(); ++region) {  // the last write is on top
    if (!overlap(*region, wanted)) continue;
    if (found == nullptr) {
      found = region->provenance;
    } else if (found != region->provenance) {
      const bool is_one_mask = found->is_intentional() && region->provenance->is_intentional();  // written row by row
      if (!is_one_mask && is_of_newer()) break;
      found = joined(*found, *region->provenance);
    }
    if (covers(*region, wanted)) break;
    if (!region->merged && region->dtype == wanted.dtype) newer.emplace_back(*region);
  }
  return found;
}

NonfiniteRegistry::ProvenancePtr NonfiniteRegistry::find_present(const at::Tensor& tensor) const {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr || !contains(tensor)) return nullptr;
  const MemoryRegion wanted(tensor);
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(storage);
  if (entry == entries_.end()) return nullptr;
  ProvenancePtr found;
  for (const Region& region : entry->second.regions) {
    if (!overlap(region, wanted) || region.provenance == found) continue;
    const bool is_moved = c10::isIntegralType(region.dtype, /*includeBool=*/true);  // its bytes came from elsewhere
    const auto holder = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(const_cast<c10::StorageImpl*>(storage));
    if (!is_moved && !kinds_of(part_within(region, wanted).tensor_in(holder)).any()) continue;
    found = found == nullptr ? region.provenance : joined(*found, *region.provenance);
  }
  return found;
}

bool NonfiniteRegistry::contains(const at::Tensor& tensor) const {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr || !filter_.may_contain(storage)) return false;
  const std::lock_guard lock(mutex_);
  return entries_.count(storage) != 0;
}

// An operation in place often hands on what is remembered there already.
bool NonfiniteRegistry::is_remembered(const at::Tensor& tensor, const c10::StorageImpl& storage,
                                      const Provenance& provenance) const {
  if (!runtime().reports_backward_roots()) return false;  // a region has to refer to the tensor itself
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(&storage);
  if (entry == entries_.end() || entry->second.regions.size() != 1) return false;
  const Region& region = entry->second.regions.front();
  return region.provenance.get() == &provenance && region.is_of(tensor);
}

void NonfiniteRegistry::remember(const at::Tensor& tensor, ProvenancePtr provenance) {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr) return;
  ++work_counters().remembered;
  if (is_remembered(tensor, *storage, *provenance)) return mark_overwritten(*provenance);
  Region region(tensor, std::move(provenance));
  c10::weak_intrusive_ptr<c10::StorageImpl> weak(tensor.storage().getWeakStorageImpl());
  std::vector<Region> overwritten;  // released after the lock, like the expired ones
  std::vector<Entry> dead;
  const std::lock_guard lock(mutex_);
  dead = drain_expired();
  filter_.add(storage);
  auto& regions = entries_.try_emplace(storage, Entry{std::move(weak), {}, nullptr}).first->second.regions;
  size_ = entries_.size();
  regions.reserve(regions.size() + 1);
  const bool is_intentional = region.provenance->is_intentional();
  take(regions, overwritten, [&](const Region& old) {
    if (covers(region, old)) return true;
    if (is_intentional && old.provenance->is_intentional()) return false;  // a mask, made row by row
    return overlap(old, region) && !has_values_outside(old, region, storage);
  });
  mark_overwritten(overwritten);
  regions.push_back(std::move(region));
  if (regions.size() > kMaxRegions) merge_last(regions);
}

void NonfiniteRegistry::settle(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr || !contains(tensor)) return;
  const MemoryRegion written(tensor);
  std::vector<Region> overwritten;
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(storage);
  if (entry == entries_.end()) return;
  auto& regions = entry->second.regions;
  take(regions, overwritten, [&](const Region& old) {
    if (!overlap(old, written)) return false;
    if (covers(written, old)) return true;
    return !kinds_of(values_of(old, storage)).any();
  });
  mark_overwritten(overwritten);
  if (regions.empty() && entry->second.dependent == nullptr) entries_.erase(entry);
  size_ = entries_.size();
}

bool NonfiniteRegistry::remember_copy(const at::Tensor& original, const at::Tensor& copy) {
  const c10::StorageImpl* from = storage_of(original);
  const c10::StorageImpl* to = storage_of(copy);
  if (from == nullptr || to == nullptr || from == to) return false;
  const MemoryRegion read(original);
  const MemoryRegion written(copy);
  const int64_t shift = written.begin - read.begin;
  c10::weak_intrusive_ptr<c10::StorageImpl> weak(copy.storage().getWeakStorageImpl());
  const std::lock_guard lock(mutex_);
  const auto known = entries_.find(from);
  if (known == entries_.end()) return false;
  std::vector<Region> copied;
  for (const Region& region : known->second.regions) {
    const auto item = static_cast<int64_t>(c10::elementSize(region.dtype));
    if (region.begin < read.begin || region.end > read.end || shift % item != 0) continue;
    Region moved = region;
    moved.shift(shift);
    moved.tensor = decltype(moved.tensor)(at::Tensor().getIntrusivePtr());
    copied.push_back(std::move(moved));
  }
  if (copied.empty()) return false;
  filter_.add(to);
  auto& regions = entries_.try_emplace(to, Entry{std::move(weak), {}, nullptr}).first->second.regions;
  size_ = entries_.size();
  for (Region& region : copied) regions.push_back(std::move(region));
  while (regions.size() > kMaxRegions) merge_last(regions);
  return true;
}

std::vector<NonfiniteRegistry::Alive> NonfiniteRegistry::alive() const {
  struct KnownStorage {
    c10::intrusive_ptr<c10::StorageImpl> storage;
    std::vector<Region> regions;
  };
  std::vector<KnownStorage> storages;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, entry] : entries_) storages.push_back({entry.storage.lock(), entry.regions});
  }
  std::vector<Alive> found;
  for (KnownStorage& known : storages) {
    if (!known.storage) continue;
    for (const Region& region : known.regions) {
      at::Tensor tensor = region.tensor_in(known.storage);
      if (kinds_of(tensor).any()) found.push_back({std::move(tensor), region.provenance});
    }
  }
  std::sort(found.begin(), found.end(), [](const Alive& a, const Alive& b) {
    return a.provenance->first().origin->sequence < b.provenance->first().origin->sequence;
  });
  return found;
}

std::vector<NonfiniteRegistry::Alive> NonfiniteRegistry::produced_by(const torch::autograd::Node& node) const {
  std::vector<Alive> candidates;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, entry] : entries_) {
      for (const Region& region : entry.regions) {
        if (auto tensor = region.tensor.lock())
          candidates.push_back({at::Tensor(std::move(tensor)), region.provenance});
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

void NonfiniteRegistry::remember_dependent(const at::Tensor& tensor, std::shared_ptr<const DependentValues> values) {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr) return;
  c10::weak_intrusive_ptr<c10::StorageImpl> weak(tensor.storage().getWeakStorageImpl());
  std::vector<Entry> dead;  // released after the lock, like the old records
  const std::lock_guard lock(mutex_);
  dead = drain_expired();
  if (values == nullptr) {
    const auto entry = entries_.find(storage);
    if (entry == entries_.end()) return;
    std::swap(entry->second.dependent, values);
    if (entry->second.regions.empty()) {
      dead.push_back(std::move(entry->second));
      entries_.erase(entry);
    }
  } else {
    filter_.add(storage);
    std::swap(entries_.try_emplace(storage, Entry{std::move(weak), {}, nullptr}).first->second.dependent, values);
    has_dependent_ = true;
  }
  size_ = entries_.size();
}

std::shared_ptr<const DependentValues> NonfiniteRegistry::find_dependent(const at::Tensor& tensor) const {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr || !has_dependent() || !filter_.may_contain(storage)) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(storage);
  return entry == entries_.end() ? nullptr : entry->second.dependent;
}

std::vector<NonfiniteRegistry::AliveDependent> NonfiniteRegistry::alive_dependent() const {
  std::vector<std::pair<c10::intrusive_ptr<c10::StorageImpl>, std::shared_ptr<const DependentValues>>> known;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, entry] : entries_) {
      if (entry.dependent != nullptr) known.emplace_back(entry.storage.lock(), entry.dependent);
    }
  }
  std::vector<AliveDependent> found;
  for (auto& [storage, values] : known) {
    if (storage) found.push_back({bytes_of(std::move(storage)), std::move(values)});
  }
  return found;
}

std::vector<NonfiniteRegistry::Entry> NonfiniteRegistry::drain_expired() {
  std::vector<Entry> dead;
  if (entries_.size() < look_at_size_) return dead;
  dead.reserve(entries_.size());  // so that nothing fails halfway
  for (auto entry = entries_.begin(); entry != entries_.end();) {
    if (entry->second.storage.expired()) {
      dead.push_back(std::move(entry->second));
      entry = entries_.erase(entry);
    } else {
      ++entry;
    }
  }
  filter_.assign_keys(entries_);
  look_at_size_ = std::max(kFewEntries, 2 * entries_.size());
  return dead;
}

std::unordered_map<const c10::StorageImpl*, NonfiniteRegistry::Entry> NonfiniteRegistry::take_all() {
  std::unordered_map<const c10::StorageImpl*, Entry> taken;
  const std::lock_guard lock(mutex_);
  taken.swap(entries_);
  filter_.assign_keys(entries_);
  size_ = 0;
  has_dependent_ = false;
  return taken;
}

NonfiniteRegistry& nonfinite_registry() { return of_process; }

}  // namespace torchnan
