// What is known of the memory of tensors that are not known to be bad.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "host/program.h"

namespace torchnan {

struct OpPlan;

// A bounded cache from storage to knowledge. It forgets when it is full; what is not known is looked at. Takes no
// lock, allocates nothing, and holds no reference: even a weak one would keep the small StorageImpl where it is, and
// thousands of those in the heap keep it from giving large blocks out again.
//
// So how can an address be trusted? A StorageImpl has a flag, received_cuda, that PyTorch reads of CUDA storages only
// and that every new StorageImpl has unset. Here it marks the CPU storages that are in the ledger. A storage that
// took a dead one's address without passing by here does not have the mark, and one that was given other memory
// (resize_, set_, share_memory_) has another data pointer. Memory that PyTorch's own allocator did not give out may be
// written by others at any time; nothing is known of it, ever.
class Ledger {
 public:
  enum class Known : uint8_t {
    kNothing,
    kFinite,     // every element was looked at, or written by an operation whose result was
    kUnwritten,  // given out by empty(): what has not been written since is garbage
    kNotJudged,  // written by an operation that is never to be judged
  };
  struct Note {
    Known known = Known::kNothing;
    SiteId site = 0;                // kUnwritten: where it was given out
    const OpPlan* maker = nullptr;  // kUnwritten, kNotJudged: by which operator
  };

  Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  Note find(const at::Tensor& tensor) const noexcept;
  void note_unwritten(const at::Tensor& tensor, SiteId site, const OpPlan* maker) noexcept;
  void note_not_judged(const at::Tensor& tensor, const OpPlan* maker) noexcept;
  void forget(const at::Tensor& tensor) noexcept;

  // `tensor` is finite. Of use only where it covers its storage: nothing is told of the rest.
  void note_finite(const at::Tensor& tensor) noexcept;

  void clear() noexcept;

 private:
  static constexpr size_t kWays = 4;
  static constexpr int kBucketBits = 13;
  static constexpr size_t kBuckets = size_t{1} << kBucketBits;

  // Written by whoever runs an operation on the storage; PyTorch allows one writer at a time. Readers that come in
  // between see another key, or an older value, as they would have a moment earlier.
  struct alignas(64) Bucket {
    std::array<std::atomic<const c10::StorageImpl*>, kWays> keys{};
    std::array<std::atomic<const void*>, kWays> memory{};
    std::array<std::atomic<uint64_t>, kWays> values{};
    std::array<std::atomic<const OpPlan*>, kWays> makers{};
  };

  Bucket& bucket_of(const c10::StorageImpl* storage) const noexcept;
  void set(const at::Tensor& tensor, Note note) noexcept;

  std::unique_ptr<Bucket[]> buckets_;
};

// The process's ledger.
Ledger& ledger();

}  // namespace torchnan
