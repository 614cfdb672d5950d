// The memory that a call on lists writes, element by element. A tensor may be in a list twice, or share memory with
// another. Then the bounds from before the call do not hold for the second element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchnan/export.h>

namespace torchnan {

// Reused from call to call: allocates only for a list that is longer than all before.
class TORCHNAN_API WrittenSpans {
 public:
  // Starts a call that writes `count` tensors.
  void begin(size_t count);

  void add(const at::Tensor& tensor) noexcept;

  // Whether the tensor may have elements in common with those added. For each storage only the hull is kept: the parts
  // of a flat buffer are distinguished as long as they come in order.
  bool may_overlap(const at::Tensor& tensor) const noexcept;

 private:
  struct Slot {
    uint64_t call = 0;
    const void* memory = nullptr;  // of the storage
    uintptr_t begin = 0;
    uintptr_t end = 0;
  };

  size_t slot_of(const void* memory) const noexcept;

  std::vector<Slot> slots_;  // a power of two
  uint64_t call_ = 0;
};

// Whether elements of a tensor may share memory with each other. This is so for an expanded tensor, which PyTorch
// refuses to write, and for unfold() with a step below its size, but not for slices and transposed tensors.
TORCHNAN_API bool may_overlap_itself(const at::Tensor& tensor);

// Whether two tensors may have elements in common.
TORCHNAN_API bool may_overlap(const at::Tensor& one, const at::Tensor& other);

}  // namespace torchnan
