// A count that one thread writes and any thread reads.
#pragma once

#include <atomic>
#include <cstdint>

namespace torchnan {

// Counts exactly without a locked instruction, as only one thread writes it.
class Counter {
 public:
  void add(int64_t n) noexcept { value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed); }
  int64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

}  // namespace torchnan
