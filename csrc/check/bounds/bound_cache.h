// The bounds of tensors that are not known to be non-finite, by storage.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include <ATen/core/Tensor.h>

#include <torchnan/bounds.h>
#include <torchnan/export.h>

#include "base/runtime.h"
#include "base/fork_safe_mutex.h"

namespace torchnan {

// Whether a bound of the tensor holds for all of its storage.
inline bool covers_whole_storage(const at::Tensor& tensor, const c10::StorageImpl& storage) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const auto bytes = static_cast<size_t>(impl.numel()) * impl.itemsize();
  return bytes >= storage.nbytes() && impl.is_non_overlapping_and_dense();
}

// A cache of limited size, keyed by the address of the storage. When it is full it evicts entries; a tensor without an
// entry is scanned. It takes no lock, allocates nothing, and holds no reference: even a weak one would keep the small
// StorageImpl in place, and thousands of those fragment the heap, so that large blocks cannot be reused. Names of
// operators live as long as the process.
//
// Why an address can be trusted without a reference: a StorageImpl has a flag, received_cuda, that PyTorch reads for
// CUDA storages only and that is unset in every new StorageImpl. Here it marks the CPU storages that are in the cache.
// A storage that was allocated at the address of a dead one is not marked, and one that got other memory (resize_,
// set_, share_memory_) has another data pointer. Memory that does not come from PyTorch's own allocator, or that was
// exported (numpy(), DLPack, data_ptr()), can be written by others at any time, so it never has a bound.
//
// Threads outside of every session write too. Most of their writes increase the version of the tensor, and a bound
// holds only for the version at which it was recorded. Two kinds of writes do not: those to an inference tensor, which
// has no version, and those through an alias with a separate version counter (x.data). The bounds of such storages hold
// only until another thread of the interpreter has run (base/thread_switches.h).
class TORCHNAN_API BoundCache {
 public:
  enum class State : uint8_t {
    kUnknown,
    kRequested,       // unknown, and its bound has been requested once
    kFinite,          // every element is finite and within the bound: scanned or proved
    kFiniteOrMasked,  // the same, but some elements may be an intentional -inf
    kStale,           // was finite, but others may have written to it since
    kUninitialized,   // allocated by empty(); elements not written since are garbage
    kIgnored,         // written by an operation that is never checked (skip_ops)
  };
  struct Entry {
    State state = State::kUnknown;
    Bound bound{};          // kFinite, kFiniteOrMasked; infinite for dtypes without bounds
    bool exported = false;  // others can write to it at any time: never kFinite
    SiteId site = 0;        // kUninitialized: where it was allocated
    // Name of the operator that wrote or allocated it, or of the pending collective if the state is unknown. Null with
    // a stamp.
    const std::string* op = nullptr;
    uint64_t stamp = 0;  // kFinite: the stamp() since the last write; 0 for none
  };

  BoundCache();
  BoundCache(const BoundCache&) = delete;
  BoundCache& operator=(const BoundCache&) = delete;

  // Returns the entry of the storage. An entry recorded under another dtype does not count.
  Entry find(const at::Tensor& tensor) const noexcept;
  // Whether find() returns a finite entry.
  bool is_finite(const at::Tensor& tensor) const noexcept;
  // Finds the bound of an entry that is finite, or masked. Returns whether there is one.
  bool find_bound(const at::Tensor& tensor, Bound& found) const noexcept;
  // Returns the pending collective if it was the last to write there; null otherwise.
  const std::string* pending_collective(const at::Tensor& tensor) const noexcept;

  // Records that `tensor` was written and is within `bound`. A partial write widens the bound of the whole storage, if
  // it is known in the same dtype; otherwise it ends that bound. `awaits_version`: the bound holds for the next version
  // of the tensor, which PyTorch increases for this write.
  void record_written(const at::Tensor& tensor, const Bound& bound, const std::string* op,
                      bool awaits_version = false) noexcept;
  // Records that no element of `tensor` is negative, because its square root was finite.
  void record_nonnegative(const at::Tensor& tensor) noexcept;
  // Marks a storage that is known to be finite until the next write. The stamp is not 0, and no other caller uses it.
  void stamp(const at::Tensor& tensor, uint64_t stamp) noexcept;
  // Records that `tensor` was scanned and is within `bound`. Says nothing about the rest of its storage.
  void record_read(const at::Tensor& tensor, Bound bound) noexcept;

  // Records a better bound of a tensor that is known to be finite.
  void record_tightened(const at::Tensor& tensor, double max_abs) noexcept;
  // Does the same for the values with this stamp, if the storage still holds them. The storage may have been freed.
  void record_tightened(const c10::StorageImpl* storage, uint64_t stamp, double max_abs) noexcept;

  void record_requested(const at::Tensor& tensor, const std::string* collective) noexcept;
  // Records that a collective was started that will write there.
  void record_pending_collective(const at::Tensor& tensor, const std::string* collective) noexcept;
  void record_uninitialized(const at::Tensor& tensor, SiteId site, const std::string* op) noexcept;
  void record_ignored(const at::Tensor& tensor, const std::string* op) noexcept;
  void forget(const at::Tensor& tensor) noexcept;

  // Records that others may have written there just now.
  void mark_stale(const at::Tensor& tensor) noexcept;
  void mark_stale(c10::StorageImpl& storage) noexcept;
  // The same for a storage that may have been freed: then it does this, harmlessly, to one at its address.
  void doubt(const c10::StorageImpl* storage) noexcept;
  // Records that an operation has written there, and that its values are not known.
  void mark_written_unseen(const at::Tensor& tensor) noexcept;
  // Records that others can write there for as long as the storage lives. Takes a lock the first time.
  void record_exported(const at::Tensor& tensor);
  void record_exported(const c10::Storage& storage);
  // Records that the storage is about to get an alias with a separate version counter.
  void record_aliased(const at::Tensor& tensor) noexcept;

  // Forgets every bound. Called when a rule has turned out to be wrong, because its bounds were used to prove others.
  void forget_bounds() noexcept;

  void clear() noexcept;

 private:
  static constexpr size_t kWays = 4;
  static constexpr size_t kBuckets = 1 << 13;

  // Written by the thread that runs an operation on the storage; PyTorch allows one writer at a time. A concurrent
  // reader sees another key, or the previous value.
  struct Slot {
    std::atomic<const c10::StorageImpl*> key{};
    std::atomic<const void*> memory{};
    std::atomic<uint64_t> word{};
    std::atomic<uintptr_t> writer{};  // the name of the operator, or a stamp
  };
  // A storage has one slot at most. Most are in the first, which needs one line of the processor's cache.
  struct alignas(64) Bucket {
    std::array<Slot, kWays> slots{};
  };

  // The words of a storage's slot; 0 if there is none.
  struct Packed {
    uint64_t word = 0;
    uintptr_t writer = 0;
  };

  [[gnu::noinline]] void record_part_written(const at::Tensor& tensor, const Bound& bound,
                                             bool awaits_version) noexcept;
  Bucket& bucket_of(const c10::StorageImpl* storage) const noexcept;
  Slot* slot_of(const c10::StorageImpl* storage) const noexcept;
  Slot& choose_slot(const c10::StorageImpl* storage) noexcept;
  Packed load(const c10::StorageImpl* storage) const noexcept;
  void set(const at::Tensor& tensor, const Entry& entry) noexcept;
  void store(c10::StorageImpl* storage, uint64_t word, uintptr_t writer) noexcept;
  void drop(const c10::StorageImpl* storage) noexcept;
  bool is_exported(const c10::StorageImpl* storage) const noexcept;

  std::unique_ptr<Bucket[]> buckets_;

  // Few entries, searched only for storages that are marked but evicted; so holding references under a lock is
  // affordable.
  mutable ForkSafeMutex mutex_;
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> exported_;
  std::atomic<size_t> exported_count_{0};
  size_t purge_at_ = 64;
};

// Returns the bound cache of the process.
TORCHNAN_API BoundCache& bound_cache();

}  // namespace torchnan
