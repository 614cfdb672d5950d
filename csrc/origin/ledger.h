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
// lock and allocates nothing. An entry holds its StorageImpl's address by a weak reference, so that an address is
// never taken for another's; the tensor's memory is freed as ever.
class Ledger {
 public:
  enum class Known : uint8_t {
    kNothing,
    kFinite,     // every element was looked at, or written by an operation whose result was
    kUnwritten,  // given out by empty(): what has not been written since is garbage
  };
  struct Note {
    Known known = Known::kNothing;
    SiteId site = 0;                    // kUnwritten: where it was given out
    const OpPlan* allocator = nullptr;  // and by which operator
  };

  Ledger();
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  Note find(const at::Tensor& tensor) const;
  void note_unwritten(const at::Tensor& tensor, SiteId site, const OpPlan* allocator);
  void forget(const at::Tensor& tensor);

  // `tensor` is finite. Of use only where it covers its storage: nothing is told of the rest.
  void note_finite(const at::Tensor& tensor);

  void clear();

 private:
  static constexpr size_t kWays = 4;
  static constexpr size_t kBuckets = 1 << 13;

  struct alignas(64) Bucket {
    std::array<std::atomic<c10::StorageImpl*>, kWays> keys{};
    std::array<std::atomic<uint64_t>, kWays> values{};
    std::array<std::atomic<const OpPlan*>, kWays> allocators{};
    std::atomic<uint32_t> next_victim{0};
  };

  Bucket& bucket_of(const c10::StorageImpl* storage) const;
  static size_t claim_slot(Bucket& bucket);
  void set(c10::StorageImpl* storage, uint64_t value, const OpPlan* allocator);

  std::unique_ptr<Bucket[]> buckets_;
};

// The process's ledger.
Ledger& ledger();

}  // namespace torchnan
