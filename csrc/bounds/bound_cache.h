// What is known of the memory of tensors that are not known to be bad.
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

#include "host/host_runtime.h"
#include "process/fork_safe_mutex.h"

namespace torchnan {

// Whether what is known of the tensor is so of all of its storage.
inline bool covers_whole_storage(const at::Tensor& tensor, const c10::StorageImpl& storage) {
  return tensor.nbytes() >= storage.nbytes() && tensor.is_non_overlapping_and_dense();
}

// A bounded cache from storage to knowledge. It forgets when it is full; what is not known is looked at. Takes no
// lock, allocates nothing, and holds no reference: even a weak one would keep the small StorageImpl where it is, and
// thousands of those in the heap keep it from giving large blocks out again. Names of operators live as long as the
// process.
//
// So how can an address be trusted? A StorageImpl has a flag, received_cuda, that PyTorch reads of CUDA storages only
// and that every new StorageImpl has unset. Here it marks the CPU storages that are in the bound cache. A storage that
// took a dead one's address without passing by here does not have the mark, and one that was given other memory
// (resize_, set_, share_memory_) has another data pointer. Memory that PyTorch's own allocator did not give out, or
// that was handed to others (numpy(), DLPack), may be written by them at any time; nothing is known of it, ever.
class TORCHNAN_API BoundCache {
 public:
  enum class State : uint8_t {
    kUnknown,
    kRequested,       // nothing, and its bound has been asked for
    kFinite,          // every element is finite and within the bound: looked at, or proved
    kFiniteOrMasked,  // the same, but some may be -inf, on purpose
    kStale,           // and may have been written since, by others
    kUninitialized,   // given out by empty(): what has not been written since is garbage
    kIgnored,         // written by an operation that is never to be judged
  };
  struct Entry {
    State state = State::kUnknown;
    Bound bound{};          // kFinite, kFiniteOrMasked; infinite for dtypes that bounds say nothing of
    bool exported = false;  // others can write there at any time: never kFinite
    SiteId site = 0;        // kUninitialized: where it was given out
    const std::string* op =
        nullptr;  // name of the operator that wrote it, or gave it out; else of a pending collective
  };

  BoundCache();
  BoundCache(const BoundCache&) = delete;
  BoundCache& operator=(const BoundCache&) = delete;

  // What was noted of a storage under another dtype says nothing: a float16 is no half of a float32.
  Entry find(const at::Tensor& tensor) const noexcept;
  // The collective that was the last to write there; null if it was none.
  const std::string* pending_collective(const at::Tensor& tensor) const noexcept;

  // `tensor` has been written and is within `bound`. Of a part of a storage: what was known of the whole is widened.
  void record_written(const at::Tensor& tensor, Bound bound, const std::string* op) noexcept;
  // No element of `tensor` is below zero: somebody has taken its square root.
  void record_nonnegative(const at::Tensor& tensor) noexcept;
  // `tensor` was read, and is within `bound`. Nothing is told of the rest of its storage.
  void record_read(const at::Tensor& tensor, Bound bound) noexcept;

  void record_requested(const at::Tensor& tensor, const std::string* collective) noexcept;
  // A collective has been started that will write there.
  void record_pending_collective(const at::Tensor& tensor, const std::string* collective) noexcept;
  void record_uninitialized(const at::Tensor& tensor, SiteId site, const std::string* op) noexcept;
  void record_ignored(const at::Tensor& tensor, const std::string* op) noexcept;
  void forget(const at::Tensor& tensor) noexcept;

  // Somebody else may have written there just now.
  void mark_stale(const at::Tensor& tensor) noexcept;
  // Others can write there from now on, for as long as the storage lives. Takes a lock.
  void record_exported(const at::Tensor& tensor);

  void clear() noexcept;

 private:
  static constexpr size_t kWays = 4;
  static constexpr int kBucketBits = 13;
  static constexpr size_t kBuckets = size_t{1} << kBucketBits;

  // Written by whoever runs an operation on the storage; PyTorch allows one writer at a time. Readers that come
  // in between see another key, or an older value, as they would have a moment earlier.
  struct alignas(64) Bucket {
    std::array<std::atomic<const c10::StorageImpl*>, kWays> keys{};
    std::array<std::atomic<const void*>, kWays> memory{};
    std::array<std::atomic<uint64_t>, kWays> values{};
    std::array<std::atomic<const std::string*>, kWays> ops{};
  };

  Bucket& bucket_of(const c10::StorageImpl* storage) const noexcept;
  void set(const at::Tensor& tensor, Entry entry) noexcept;
  void drop(const c10::StorageImpl* storage) noexcept;
  bool is_exported(const c10::StorageImpl* storage) const noexcept;

  std::unique_ptr<Bucket[]> buckets_;

  // Few, and looked up only for storages that are marked and were evicted: so with references, under a lock.
  mutable ForkSafeMutex mutex_;
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> exported_;
  std::atomic<size_t> exported_count_{0};
  size_t purge_at_ = 64;
};

// The process's bound cache.
TORCHNAN_API BoundCache& bound_cache();

}  // namespace torchnan
