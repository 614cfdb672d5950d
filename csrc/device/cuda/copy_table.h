// The input of a launch that copies memory on a condition: plain data for the host, the device and C.
#pragma once

#include <stdint.h>

namespace torchnan::cuda {

struct CopyEntry {
  const void* from;
  void* to;
  uint64_t bytes;
};

constexpr uint32_t kMaxCopies = 160;

// It fits into the arguments of the kernel, beside two others.
struct CopyTable {
  uint32_t entries;
  CopyEntry entry[kMaxCopies];
};
static_assert(sizeof(CopyTable) <= 4000, "kernel arguments end at 4096 bytes on every device");

// Launches have numbers; that of launch n is n % kCopyLaunches. A launch has kCopyBlocks blocks, each of which decides
// for itself, so a launch has copied everything only if all of them have.
constexpr uint32_t kCopyLaunches = 1024;
constexpr uint32_t kCopyBlocks = 128;

// Numbers in memory of the device, `stride` apart.
struct Numbers {
  const double* first;
  uint32_t count;
  uint32_t stride;
};

}  // namespace torchnan::cuda
