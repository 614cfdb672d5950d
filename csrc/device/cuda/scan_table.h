// The input and the output of a launch of the scan: plain data for the host, the device and C, without torch and CUDA.
#pragma once

#include <stdint.h>

#include "check/scan/float_encoding.h"
#include "device/cuda/copy_table.h"

namespace torchnan::cuda {

// The largest magnitude that the scan has found for an entry since its slot was cleared: at least `infinity` if
// something is not finite.
struct Slot {
  uint64_t max_magnitude;
};

// A tensor of contiguous words.
struct Entry {
  const void* data;       // aligned to the word
  uint64_t words;         // at least one
  uint64_t limit;         // a magnitude above it raises the alarm
  uint32_t event_offset;  // the number of the entry is this much above the first of the launch
  FloatEncoding encoding;
};

constexpr uint32_t kMaxEntries = 110;
constexpr uint32_t kThreads = 256;
constexpr uint64_t kChunkBytes = 16384;  // read by the threads of one block, with four loads of 16 bytes each

// A launch for many tensors. It fits into the arguments of the kernel, so no copy to the device precedes it.
struct Table {
  uint32_t entries;
  uint32_t first_chunk[kMaxEntries + 1];  // for each entry, and one past the last
  Entry entry[kMaxEntries];
};
static_assert(sizeof(Table) <= 4096, "kernel arguments end there on every device");

// A tensor that is not contiguous.
constexpr uint32_t kMaxDims = 12;
struct StridedEntry {
  Entry entry;          // `words` of each run
  uint64_t run_stride;  // between two words of a run, in words
  uint32_t dims;
  uint64_t size[kMaxDims];
  int64_t stride[kMaxDims];  // between two runs, in words
};

// Entries have numbers that increase in the order of the operations. Entry n writes to slot n % kSlots. The alarm is
// the lowest number whose limit was exceeded; kNoAlarm if there is none.
constexpr uint64_t kNoAlarm = ~uint64_t{0};
constexpr uint32_t kSlots = 1 << 16;  // of each scanner: 512 KiB on the device

// The words that the device writes to host memory.
struct HostWords {
  uint64_t alarm;
  uint64_t resets;                        // how many resets of the alarm have been done
  uint32_t copied_blocks[kCopyLaunches];  // of each of the last launches of copies
};

// Returns the number of chunks. Each begins at a 16-byte pack: only the first and the last are partial.
inline uint64_t chunks_of(const Entry& entry) {
  const uint64_t past_pack = reinterpret_cast<uintptr_t>(entry.data) % 16;
  return (past_pack + entry.words * traits_of(entry.encoding).word_bytes + kChunkBytes - 1) / kChunkBytes;
}

// Adds an entry. Returns false if the table is full, or would have more chunks than a launch can have blocks.
inline bool add(Table& table, const Entry& entry) {
  if (table.entries >= kMaxEntries) return false;
  const uint64_t chunks = table.first_chunk[table.entries] + chunks_of(entry);
  if (chunks > INT32_MAX) return false;
  table.entry[table.entries++] = entry;
  table.first_chunk[table.entries] = static_cast<uint32_t>(chunks);
  return true;
}

}  // namespace torchnan::cuda
