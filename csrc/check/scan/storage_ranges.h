// The memory of storages. Two storages may share it: from_dlpack() and from_numpy() use the memory of others.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <torchnan/export.h>

namespace torchnan {

struct StorageRange {
  uintptr_t begin = 0;
  uintptr_t end = 0;

  bool overlaps(const StorageRange& other) const { return begin < other.end && other.begin < end; }
};

// Returns the memory of a tensor's storage, or of its values if it is sparse; nothing for a tensor without memory.
TORCHNAN_API StorageRange storage_range(const at::Tensor& tensor);

class TORCHNAN_API StorageRanges {
 public:
  void add(const at::Tensor& tensor);

  // Call it after the last add().
  void sort();

  bool empty() const { return ranges_.empty(); }
  bool overlap(const at::Tensor& tensor) const;

 private:
  c10::SmallVector<StorageRange, 4> ranges_;  // sorted, and apart from each other
};

}  // namespace torchnan
