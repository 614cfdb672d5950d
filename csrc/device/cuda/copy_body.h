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

}  // namespace torchnan::cuda
