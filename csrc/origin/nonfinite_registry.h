// The tensors that are non-finite right now, with their causes. Empty in a healthy run.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchnan/export.h>

#include "origin/dependent_values.h"
#include "origin/memory_region.h"
#include "origin/provenance.h"
#include "origin/storage_filter.h"
#include "base/fork_safe_mutex.h"

namespace torch::autograd {
struct Node;
}

namespace torchnan {

// Non-finite values by the storage that holds them. Keeps no tensor alive: an entry ends soon after its storage, and is
// moved or dropped when an operation overwrites it. A reused address is never confused with its former storage.
class TORCHNAN_API NonfiniteRegistry {
  struct Entry;

 public:
  using ProvenancePtr = std::shared_ptr<const Provenance>;

  bool in_use() const noexcept { return size_.load(std::memory_order_relaxed) != 0; }
  size_t size() const noexcept { return size_.load(std::memory_order_relaxed); }

  // Returns the provenance of `tensor`, which the caller knows to be non-finite; null if the origin of its values was
  // not observed. It has the causes of everything that overlaps with the tensor.
  ProvenancePtr find(const at::Tensor& tensor) const;

  // Returns the provenance of those records whose values are non-finite within the memory of `tensor`, whatever its
  // dtype; null if there are none.
  ProvenancePtr find_present(const at::Tensor& tensor) const;

  // Whether there is a record about the storage of `tensor`. Takes a lock only if there may be one.
  bool contains(const at::Tensor& tensor) const;

  void remember(const at::Tensor& tensor, ProvenancePtr provenance);

  // Copies the records about the bytes of `original` to those of `copy`. Both are contiguous and of one size. Returns
  // whether there were any that do not reach beyond `original`.
  bool remember_copy(const at::Tensor& original, const at::Tensor& copy);

  // Removes the records that a write to `tensor`, which is finite now, has overwritten.
  void settle(const at::Tensor& tensor);

  struct Alive {
    at::Tensor tensor;
    ProvenancePtr provenance;
  };
  // Returns the tensors that are still alive and still non-finite.
  std::vector<Alive> alive() const;

  // Returns the tensors that are still alive and were made by this backward node.
  std::vector<Alive> produced_by(const torch::autograd::Node& node) const;

  // Finite values that depend on a NaN, by the same storages: `contains` is true for these too.
  void remember_dependent(const at::Tensor& tensor, std::shared_ptr<const DependentValues> values);
  std::shared_ptr<const DependentValues> find_dependent(const at::Tensor& tensor) const;
  // Whether there were any since the registry was emptied.
  bool has_dependent() const noexcept { return has_dependent_.load(std::memory_order_relaxed); }

  struct AliveDependent {
    at::Tensor bytes;  // of the whole storage
    std::shared_ptr<const DependentValues> values;
  };
  std::vector<AliveDependent> alive_dependent() const;

  // Empties it, and returns its contents, so that the caller destroys them after releasing its lock.
  std::unordered_map<const c10::StorageImpl*, Entry> take_all();

 private:
  // A tensor at the time of its record.
  struct Region : MemoryRegion {
    Region(const at::Tensor& values, ProvenancePtr of_values);

    ProvenancePtr provenance;
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor{at::Tensor().getIntrusivePtr()};
  };
  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::vector<Region> regions;
    std::shared_ptr<const DependentValues> dependent{};
  };

  bool is_remembered(const at::Tensor& tensor, const c10::StorageImpl& storage, const Provenance& provenance) const;
  static at::Tensor values_of(const Region& region, const c10::StorageImpl* storage);
  static bool has_values_outside(const Region& old, const MemoryRegion& written, const c10::StorageImpl* storage);
  static void merge_last(std::vector<Region>& regions);
  template <typename IsGone>
  static void take(std::vector<Region>& regions, std::vector<Region>& overwritten, IsGone&& is_gone);

  // Called with the lock: removes the expired entries and returns them, once there may be as many as live ones.
  std::vector<Entry> drain_expired();

  static constexpr size_t kMaxRegions = 64;  // of one storage; beyond it the last two become one
  // A record keeps the StorageImpl of a freed tensor in the heap, and splits the large blocks around it. GPT-2 masks
  // make a dozen records a step: with up to 256 of them its heap is half as large again.
  static constexpr size_t kFewEntries = 2;  // not worth a search for expired ones

  mutable ForkSafeMutex mutex_;  // never held while a Python object or a storage may be released
  std::unordered_map<const c10::StorageImpl*, Entry> entries_;
  StorageFilter filter_;  // of the entries
  std::atomic<size_t> size_{0};
  std::atomic<bool> has_dependent_{false};
  size_t look_at_size_ = kFewEntries;  // for expired entries
};

// Returns a provenance with the causes of both.
NonfiniteRegistry::ProvenancePtr joined(const Provenance& a, const Provenance& b);

// Returns the registry of the process: tensors travel between threads and sessions.
TORCHNAN_API NonfiniteRegistry& nonfinite_registry();

}  // namespace torchnan
