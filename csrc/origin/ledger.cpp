#include "origin/ledger.h"

#include <c10/util/intrusive_ptr.h>

namespace torchnan {
namespace {

namespace weak = c10::raw::weak_intrusive_ptr;

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return impl->has_storage() ? impl->unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

// A slot whose key is being changed; never the address of a storage.
c10::StorageImpl* busy() { return reinterpret_cast<c10::StorageImpl*>(1); }

uint64_t pack(Ledger::Known known, SiteId site) { return (uint64_t{site} << 8) | static_cast<uint64_t>(known); }

bool covers_its_storage(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() &&
         tensor.nbytes() >= tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes();
}

}  // namespace

Ledger::Ledger() : buckets_(new Bucket[kBuckets]) {}
Ledger::~Ledger() { clear(); }

Ledger::Bucket& Ledger::bucket_of(const c10::StorageImpl* storage) const {
  const uint64_t hash = reinterpret_cast<uintptr_t>(storage) * 0x9e3779b97f4a7c15ull;
  return buckets_[hash >> (64 - 13)];
}

Ledger::Note Ledger::find(const at::Tensor& tensor) const {
  const c10::StorageImpl* storage = storage_of(tensor);
  Bucket& bucket = bucket_of(storage);
  for (size_t way = 0; way < kWays; ++way) {
    if (bucket.keys[way].load(std::memory_order_acquire) != storage || storage == nullptr) continue;
    const uint64_t value = bucket.values[way].load(std::memory_order_acquire);
    const OpPlan* allocator = bucket.allocators[way].load(std::memory_order_acquire);
    if (bucket.keys[way].load(std::memory_order_acquire) != storage) break;  // given away meanwhile
    return {static_cast<Known>(value & 0xff), static_cast<SiteId>(value >> 8), allocator};
  }
  return {};
}

void Ledger::set(c10::StorageImpl* storage, uint64_t value, const OpPlan* allocator) {
  Bucket& bucket = bucket_of(storage);
  for (size_t way = 0; way < kWays; ++way) {
    if (bucket.keys[way].load(std::memory_order_acquire) != storage) continue;
    bucket.allocators[way].store(allocator, std::memory_order_release);
    bucket.values[way].store(value, std::memory_order_release);
    return;
  }
  const size_t way = claim_slot(bucket);
  if (way == kWays) return;  // another thread was quicker: not known, then
  weak::incref(storage);
  bucket.allocators[way].store(allocator, std::memory_order_relaxed);
  bucket.values[way].store(value, std::memory_order_relaxed);
  bucket.keys[way].store(storage, std::memory_order_release);
}

// A slot is looked into only while it is claimed, as its key may be released by others otherwise.
size_t Ledger::claim_slot(Bucket& bucket) {
  const size_t first = bucket.next_victim.fetch_add(1, std::memory_order_relaxed);
  for (const bool any : {false, true}) {  // a free slot; failing that, the next in turn
    for (size_t i = 0; i < kWays; ++i) {
      const size_t way = (first + i) % kWays;
      c10::StorageImpl* key = bucket.keys[way].load(std::memory_order_acquire);
      if (key == busy() || !bucket.keys[way].compare_exchange_strong(key, busy())) continue;
      if (any || key == nullptr || weak::use_count(key) == 0) {
        if (key != nullptr) weak::decref(key);
        return way;
      }
      bucket.keys[way].store(key, std::memory_order_release);
    }
  }
  return kWays;
}

void Ledger::note_finite(const at::Tensor& tensor) {
  c10::StorageImpl* storage = storage_of(tensor);
  if (storage != nullptr && covers_its_storage(tensor)) set(storage, pack(Known::kFinite, 0), nullptr);
}

void Ledger::note_unwritten(const at::Tensor& tensor, SiteId site, const OpPlan* allocator) {
  if (c10::StorageImpl* storage = storage_of(tensor)) set(storage, pack(Known::kUnwritten, site), allocator);
}

void Ledger::forget(const at::Tensor& tensor) {
  if (c10::StorageImpl* storage = storage_of(tensor)) set(storage, pack(Known::kNothing, 0), nullptr);
}

void Ledger::clear() {
  for (size_t b = 0; b < kBuckets; ++b) {
    for (auto& key : buckets_[b].keys) {
      c10::StorageImpl* held = key.load(std::memory_order_acquire);
      if (held == nullptr || held == busy() || !key.compare_exchange_strong(held, nullptr)) continue;
      weak::decref(held);
    }
  }
}

Ledger& ledger() {
  static auto* made = new Ledger;  // never destroyed: threads may outlive static destructors
  return *made;
}

}  // namespace torchnan
