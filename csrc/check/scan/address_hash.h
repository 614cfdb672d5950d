// A hash of addresses, for tables whose keys are storages or their memory.
#pragma once

#include <cstdint>

namespace torchnan {

// A single product would map evenly spaced addresses, as allocators return them, to a pattern.
inline uint64_t hash_of_address(const void* address) noexcept {
  constexpr uint64_t kGoldenRatio = 0x9e3779b97f4a7c15;
  uint64_t hash = reinterpret_cast<uintptr_t>(address) * kGoldenRatio;
  hash = (hash ^ hash >> 32) * kGoldenRatio;
  return hash ^ hash >> 32;
}

}  // namespace torchnan
