#include "check/scan/finite_scan.h"

#include <algorithm>
#include <atomic>

#include <ATen/Parallel.h>

namespace torchnan {
namespace {

void raise_to(std::atomic<uint64_t>& largest, uint64_t value) {
  uint64_t seen = largest.load(std::memory_order_relaxed);
  while (seen < value && !largest.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

uint64_t max_magnitude_in_parallel(const void* data, int64_t words, const FloatFormat& format) {
  std::atomic<uint64_t> largest{0};
  at::parallel_for(0, words, kWorthSharing / 2 / format.word_bytes, [&](int64_t begin, int64_t end) {
    const char* first = static_cast<const char*>(data) + begin * format.word_bytes;
    raise_to(largest, max_magnitude(first, end - begin, format));
  });
  return largest;
}

}  // namespace torchnan
