// Memory of the lagging device: a caching allocator with a pool for each stream.
#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "device/lagging_device.h"

namespace torchnan::lagging {
namespace {

struct Block {
  size_t bytes = 0;
  void* queue = nullptr;
  bool belongs_to_graph = false;
  std::shared_ptr<std::atomic<bool>> is_released;
};

class Memory final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device here = current_device();
    if (bytes == 0) return {nullptr, here};
    Block block;
    block.bytes = bytes;
    block.queue = queue_of_current_stream(here);
    block.belongs_to_graph = is_capturing(block.queue);
    block.is_released = std::make_shared<std::atomic<bool>>(false);
    void* const data = take(block);
    const std::lock_guard lock(mutex_);
    blocks_[data] = std::move(block);
    return {data, data, &release_block, here};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

  void release(void* data) {
    const std::lock_guard lock(mutex_);
    const Block block = std::move(blocks_.extract(data).mapped());
    if (block.belongs_to_graph && !is_capturing(block.queue)) return;  // every replay writes there
    free_[pool_of(block)].emplace_back(data, block.is_released);
  }

  std::shared_ptr<const std::atomic<bool>> release_flag(const void* address) {
    const std::lock_guard lock(mutex_);
    auto block = blocks_.upper_bound(const_cast<void*>(address));
    if (block == blocks_.begin()) return nullptr;
    --block;
    const auto offset = static_cast<size_t>(static_cast<const char*>(address) - static_cast<char*>(block->first));
    return offset < block->second.bytes ? block->second.is_released : nullptr;
  }

  int64_t live_blocks(const void* queue) {
    const std::lock_guard lock(mutex_);
    return std::count_if(blocks_.begin(), blocks_.end(),
                         [queue](const auto& block) { return block.second.queue == queue; });
  }

 private:
  using Pool = std::tuple<void*, size_t, bool>;
  using Free = std::pair<void*, std::shared_ptr<std::atomic<bool>>>;
  static Pool pool_of(const Block& block) { return {block.queue, block.bytes, block.belongs_to_graph}; }
  static void release_block(void* data);

  // Last given back, first reused. The new owner may write there at once, in the order of the stream.
  void* take(const Block& block) {
    Free free;
    {
      const std::lock_guard lock(mutex_);
      auto& pool = free_[pool_of(block)];
      if (pool.empty()) return std::malloc(block.bytes);
      free = std::move(pool.back());
      pool.pop_back();
    }
    enqueue(block.queue, [free, bytes = block.bytes, in_graph = block.belongs_to_graph] {
      std::memset(free.first, 0xff, bytes);
      if (!in_graph) *free.second = true;
    });
    return free.first;
  }

  std::mutex mutex_;
  std::map<Pool, std::vector<Free>> free_;
  std::map<void*, Block> blocks_;  // that are given out
};

Memory& memory = *new Memory;

void Memory::release_block(void* data) { memory.release(data); }

const bool is_registered = [] {
  c10::SetAllocator(kType, &memory);
  return true;
}();

}  // namespace

c10::Allocator& allocator() { return memory; }

void resize(const c10::Storage& storage, size_t bytes) {
  c10::StorageImpl& impl = *storage.unsafeGetStorageImpl();
  c10::DataPtr made = bytes == 0 ? c10::DataPtr(nullptr, impl.device()) : memory.allocate(bytes);
  const size_t kept = std::min(bytes, impl.nbytes());
  if (kept > 0) {
    enqueue(impl.device(), [to = made.get(), from = impl.data(), kept] { std::memcpy(to, from, kept); });
  }
  impl.set_data_ptr(std::move(made));
  impl.set_nbytes(bytes);
}

int64_t live_blocks(c10::Stream stream) { return memory.live_blocks(queue_of_stream(stream)); }

std::shared_ptr<const std::atomic<bool>> release_flag(const void* address) { return memory.release_flag(address); }

}  // namespace torchnan::lagging
