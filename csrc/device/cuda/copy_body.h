// The work of one thread of a copy. Compiled for the device and, for tests without one, for the host.
#pragma once

#include <stdint.h>

#include "device/cuda/copy_table.h"
#include "device/cuda/scan_body.h"

namespace torchnan::cuda {

// Copies the share of thread `thread` of `threads` of an entry: packs of 16 bytes if both ends are aligned to them.
TORCHNAN_HOST_DEVICE void copy_share(const CopyEntry& entry, uint64_t thread, uint64_t threads) {
  const auto* const from = static_cast<const char*>(entry.from);
  auto* const to = static_cast<char*>(entry.to);
  const bool is_aligned = (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % sizeof(Pack) == 0;
  const uint64_t packs = is_aligned ? entry.bytes / sizeof(Pack) : 0;
  for (uint64_t i = thread; i < packs; i += threads) {
    reinterpret_cast<Pack*>(to)[i] = reinterpret_cast<const Pack*>(from)[i];
  }
  for (uint64_t i = packs * sizeof(Pack) + thread; i < entry.bytes; i += threads) to[i] = from[i];
}

TORCHNAN_HOST_DEVICE bool is_nonfinite(double number) {
  union {
    double number;
    uint64_t bits;
  } as{number};
  constexpr uint64_t kExponent = uint64_t{0x7ff} << 52;
  return (as.bits & kExponent) == kExponent;
}

// Whether one of the numbers that thread `thread` of `threads` reads is not finite.
TORCHNAN_HOST_DEVICE bool finds_nonfinite(const Numbers& numbers, uint32_t thread, uint32_t threads) {
  bool is_found = false;
  for (uint32_t i = thread; i < numbers.count; i += threads) {
    is_found |= is_nonfinite(numbers.first[static_cast<uint64_t>(i) * numbers.stride]);
  }
  return is_found;
}

}  // namespace torchnan::cuda
