#include "origin/ledger.h"

#include <c10/core/CPUAllocator.h>

namespace torchnan {
namespace {

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return impl->has_storage() ? impl->unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

// Whether only operations write there.
bool is_pytorchs_own(const c10::StorageImpl& storage) {
  static const c10::DeleterFnPtr deleter = c10::GetCPUAllocator()->raw_deleter();
  return storage.device_type() == c10::kCPU && storage.data_ptr().get_deleter() == deleter;
}

bool is_marked(c10::StorageImpl& storage) { return storage.received_cuda(); }

bool covers_its_storage(const at::Tensor& tensor, const c10::StorageImpl& storage) {
  return tensor.nbytes() >= storage.nbytes() && tensor.is_non_overlapping_and_dense();
}

}  // namespace

Ledger::Ledger() : buckets_(new Bucket[kBuckets]) {}

Ledger::Bucket& Ledger::bucket_of(const c10::StorageImpl* storage) const noexcept {
  const uint64_t hash = reinterpret_cast<uintptr_t>(storage) * 0x9e3779b97f4a7c15ull;
  return buckets_[hash >> (64 - kBucketBits)];
}

Ledger::Note Ledger::find(const at::Tensor& tensor) const noexcept {
  c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr || !is_marked(*storage)) return {};
  Bucket& bucket = bucket_of(storage);
  for (size_t way = 0; way < kWays; ++way) {
    if (bucket.keys[way].load(std::memory_order_acquire) != storage) continue;
    if (bucket.memory[way].load(std::memory_order_acquire) != storage->data_ptr().get()) return {};
    const uint64_t value = bucket.values[way].load(std::memory_order_acquire);
    const OpPlan* maker = bucket.makers[way].load(std::memory_order_acquire);
    if (bucket.keys[way].load(std::memory_order_acquire) != storage) return {};  // given away meanwhile
    return {static_cast<Known>(value & 0xff), static_cast<SiteId>(value >> 8), maker};
  }
  return {};
}

void Ledger::set(const at::Tensor& tensor, Note note) noexcept {
  c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr || !is_pytorchs_own(*storage)) return;
  Bucket& bucket = bucket_of(storage);
  const auto fits = [&](const c10::StorageImpl* key) {
    for (size_t way = 0; way < kWays; ++way) {
      if (bucket.keys[way].load(std::memory_order_acquire) == key) return way;
    }
    return kWays;
  };
  size_t way = fits(storage);
  if (way == kWays) way = fits(nullptr);
  // Full: the low bits of the address choose, which are as good as random.
  if (way == kWays) way = (reinterpret_cast<uintptr_t>(storage) >> 4) % kWays;
  bucket.keys[way].store(nullptr, std::memory_order_release);
  bucket.memory[way].store(storage->data_ptr().get(), std::memory_order_release);
  bucket.values[way].store((uint64_t{note.site} << 8) | static_cast<uint64_t>(note.known), std::memory_order_release);
  bucket.makers[way].store(note.maker, std::memory_order_release);
  bucket.keys[way].store(storage, std::memory_order_release);
  if (!is_marked(*storage)) storage->set_received_cuda(true);
}

void Ledger::note_finite(const at::Tensor& tensor) noexcept {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage != nullptr && covers_its_storage(tensor, *storage)) set(tensor, {Known::kFinite, 0, nullptr});
}

void Ledger::note_unwritten(const at::Tensor& tensor, SiteId site, const OpPlan* maker) noexcept {
  set(tensor, {Known::kUnwritten, site, maker});
}

void Ledger::note_not_judged(const at::Tensor& tensor, const OpPlan* maker) noexcept {
  set(tensor, {Known::kNotJudged, 0, maker});
}

void Ledger::forget(const at::Tensor& tensor) noexcept { set(tensor, {}); }

void Ledger::clear() noexcept {
  for (size_t b = 0; b < kBuckets; ++b) {
    for (auto& key : buckets_[b].keys) key.store(nullptr, std::memory_order_release);
  }
}

Ledger& ledger() {
  static auto* made = new Ledger;  // never destroyed: threads may outlive static destructors
  return *made;
}

}  // namespace torchnan
