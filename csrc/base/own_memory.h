// Memory outside of the user's heap.
#pragma once

#include <cstddef>
#include <memory_resource>

#include <torchnan/export.h>

namespace torchnan {

// For small objects that outlive a call. PyTorch frees large blocks around such an object, and malloc cannot join the
// blocks across it: the heap of a training step would grow. Not thread-safe; fork-safe under a ForkSafeMutex.
class TORCHNAN_API OwnMemory final : public std::pmr::memory_resource {
 private:
  // Anonymous mappings, which cost nothing until they are written.
  class Mappings final : public std::pmr::memory_resource {
    void* do_allocate(size_t bytes, size_t alignment) override;
    void do_deallocate(void* mapping, size_t bytes, size_t alignment) override;
    bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }
  };
  static constexpr size_t kFirstMapping = 256 << 10;  // bytes; each further one is larger

  void* do_allocate(size_t bytes, size_t alignment) override { return blocks_.allocate(bytes, alignment); }
  void do_deallocate(void* block, size_t bytes, size_t alignment) override {
    blocks_.deallocate(block, bytes, alignment);
  }
  bool do_is_equal(const memory_resource& other) const noexcept override { return this == &other; }

  Mappings mappings_;
  std::pmr::monotonic_buffer_resource bytes_{kFirstMapping, &mappings_};
  std::pmr::unsynchronized_pool_resource blocks_{&bytes_};
};

}  // namespace torchnan
