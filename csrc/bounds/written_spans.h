// Which memory a call on lists writes, element after element. A tensor may be in a list twice, or share memory with
// another: for the second element the bounds of before the call do not hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchnan/export.h>

namespace torchnan {

// Used again from call to call: allocates only for a list that is longer than all before.
class TORCHNAN_API WrittenSpans {
 public:
  // Starts a call that writes so many tensors.
  void begin(size_t count);

  void add(const at::Tensor& tensor) noexcept;

  // Whether the tensor may have elements in common with those added. Of one storage the hull is kept: the parts of a
  // flat buffer are told apart as long as they come in order.
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

// Whether elements of a tensor may share memory with each other. An expanded one, which PyTorch refuses to write, and
// unfold() with a step below its size are such; slices and transposed tensors are not.
TORCHNAN_API bool may_overlap_itself(const at::Tensor& tensor);

}  // namespace torchnan
