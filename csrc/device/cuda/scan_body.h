// The work of one thread of the scan. Compiled for the device and, for tests without one, for the host.
#pragma once

#include <stdint.h>

#include "check/scan/float_encoding.h"
#include "device/cuda/scan_table.h"

#if defined(__CUDACC__) || defined(__HIP__)
#define TORCHNAN_HOST_DEVICE __host__ __device__ __forceinline__
#define TORCHNAN_UNROLL _Pragma("unroll")
#else
#define TORCHNAN_HOST_DEVICE inline
#define TORCHNAN_UNROLL
#endif

namespace torchnan::cuda {

// The number of chunks that a block reads one after the other: one until there are enough blocks to fill a device, and
// four beyond, because each block ends with a reduction and an atomic operation.
constexpr uint32_t kFillingBlocks = 4096;
TORCHNAN_HOST_DEVICE uint32_t chunks_per_block(uint32_t chunks) { return chunks <= kFillingBlocks ? 1 : 4; }
TORCHNAN_HOST_DEVICE uint32_t blocks_for(uint32_t chunks) {
  return (chunks + chunks_per_block(chunks) - 1) / chunks_per_block(chunks);
}

constexpr uint32_t kWarp = 32;  // threads that run in step

TORCHNAN_HOST_DEVICE uint64_t words_of(const StridedEntry& strided) {
  uint64_t words = strided.entry.words;
  for (uint32_t d = 0; d < strided.dims; ++d) words *= strided.size[d];
  return words;
}

// Words packed in a register. The device has instructions for them; on the host they are emulated.
template <typename Word>
struct Packed {
  using Register = uint32_t;
};
template <>
struct Packed<uint64_t> {
  using Register = uint64_t;
};

template <typename Word, typename Register, typename Of>
TORCHNAN_HOST_DEVICE Register for_each_word(Register a, Register b, Of of) {
  constexpr int kBits = 8 * sizeof(Word);
  Register all = 0;
  for (int at = 0; at < 8 * static_cast<int>(sizeof(Register)); at += kBits) {
    all |= static_cast<Register>(of(static_cast<Word>(a >> at), static_cast<Word>(b >> at))) << at;
  }
  return all;
}

template <typename Word>
TORCHNAN_HOST_DEVICE typename Packed<Word>::Register packed_max(typename Packed<Word>::Register a,
                                                                typename Packed<Word>::Register b) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(Word) == 1) return __vmaxu4(a, b);
  if constexpr (sizeof(Word) == 2) return __vmaxu2(a, b);
  if constexpr (sizeof(Word) >= 4) return a < b ? b : a;
#else
  return for_each_word<Word>(a, b, [](Word x, Word y) { return x < y ? y : x; });
#endif
}

template <typename Word>
TORCHNAN_HOST_DEVICE typename Packed<Word>::Register packed_add(typename Packed<Word>::Register a,
                                                                typename Packed<Word>::Register b) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(Word) == 1) return __vadd4(a, b);
  if constexpr (sizeof(Word) == 2) return __vadd2(a, b);
  if constexpr (sizeof(Word) >= 4) return a + b;
#else
  return for_each_word<Word>(a, b, [](Word x, Word y) { return static_cast<Word>(x + y); });
#endif
}

// Returns a register with the same word at every position.
template <typename Word>
TORCHNAN_HOST_DEVICE constexpr typename Packed<Word>::Register broadcast(Word word) {
  using Register = typename Packed<Word>::Register;
  Register all = 0;
  for (unsigned at = 0; at < 8 * sizeof(Register); at += 8 * sizeof(Word)) all |= static_cast<Register>(word) << at;
  return all;
}

// The largest magnitude that one thread has read.
template <FloatEncoding kEncoding>
class MaxMagnitude {
 public:
  using Word = typename Encoding<kEncoding>::Word;
  using Register = typename Packed<Word>::Register;

  TORCHNAN_HOST_DEVICE void add(Register words) {
    constexpr Register kMask = broadcast<Word>(Encoding<kEncoding>::kMask);
    if constexpr (Encoding<kEncoding>::kBias != 0)
      words = packed_add<Word>(words, broadcast<Word>(Encoding<kEncoding>::kBias));
    largest_ = packed_max<Word>(largest_, words & kMask);
  }

  // Adds one word, broadcast to the whole register, so that a bias applies to every position alike.
  TORCHNAN_HOST_DEVICE void add_word(Word word) { add(broadcast<Word>(word)); }

  TORCHNAN_HOST_DEVICE uint64_t value() const {
    Word best = 0;
    for (unsigned at = 0; at < 8 * sizeof(Register); at += 8 * sizeof(Word)) {
      const Word word = static_cast<Word>(largest_ >> at);
      best = best < word ? word : best;
    }
    return best;
  }

 private:
  Register largest_ = 0;
};

// The unit of a 16-byte load.
struct alignas(16) Pack {
  uint32_t part[4];
};

TORCHNAN_HOST_DEVICE Pack load_pack(uint64_t address) {
#ifdef __CUDA_ARCH__
  const uint4 parts = __ldg(reinterpret_cast<const uint4*>(address));
  return {{parts.x, parts.y, parts.z, parts.w}};
#else
  return *reinterpret_cast<const Pack*>(address);
#endif
}

template <FloatEncoding kEncoding>
TORCHNAN_HOST_DEVICE void add_pack(MaxMagnitude<kEncoding>& largest, const Pack& pack) {
  if constexpr (sizeof(typename Encoding<kEncoding>::Word) == 8) {
    largest.add(pack.part[0] | static_cast<uint64_t>(pack.part[1]) << 32);
    largest.add(pack.part[2] | static_cast<uint64_t>(pack.part[3]) << 32);
  } else {
    for (uint32_t part : pack.part) largest.add(part);
  }
}

template <FloatEncoding kEncoding>
TORCHNAN_HOST_DEVICE void add_words(MaxMagnitude<kEncoding>& largest, uint64_t first, uint64_t last) {
  using Word = typename Encoding<kEncoding>::Word;
  for (uint64_t at = first; at < last; at += sizeof(Word)) largest.add_word(*reinterpret_cast<const Word*>(at));
}

constexpr int kLoads = 4;  // that a thread has under way at a time
static_assert(kChunkBytes % (kLoads * kThreads * sizeof(Pack)) == 0);

// Adds the share of thread `thread` of `threads` in adjacent chunks of the words from address `begin` to `end`.
template <FloatEncoding kEncoding>
TORCHNAN_HOST_DEVICE void add_chunks(MaxMagnitude<kEncoding>& largest, uint64_t begin, uint64_t end, uint64_t chunk,
                                     uint64_t chunks, uint32_t thread, uint32_t threads) {
  constexpr uint64_t kPack = sizeof(Pack);
  const uint64_t step = threads * kPack;
  const uint64_t from = begin / kPack * kPack + chunk * kChunkBytes;
  const uint64_t to = from + chunks * kChunkBytes < end ? from + chunks * kChunkBytes : end;

  uint64_t at = from + thread * kPack;
  if (at < begin) {  // the first pack of the tensor, which begins inside it
    add_words(largest, begin, at + kPack < to ? at + kPack : to);
    at += step;
  }
  for (; at + (kLoads - 1) * step + kPack <= to; at += kLoads * step) {
    Pack packs[kLoads];
    TORCHNAN_UNROLL
    for (int i = 0; i < kLoads; ++i) packs[i] = load_pack(at + i * step);
    TORCHNAN_UNROLL
    for (int i = 0; i < kLoads; ++i) add_pack(largest, packs[i]);
  }
  for (; at + kPack <= to; at += step) add_pack(largest, load_pack(at));
  if (at < to) add_words(largest, at, to);  // the last pack of the tensor
}

// Returns the largest magnitude in the share of thread `thread` of kThreads in adjacent chunks of an entry.
template <FloatEncoding kEncoding>
TORCHNAN_HOST_DEVICE uint64_t scan_chunks(const Entry& entry, uint64_t chunk, uint64_t chunks, uint32_t thread) {
  const uint64_t begin = reinterpret_cast<uintptr_t>(entry.data);
  const uint64_t end = begin + entry.words * sizeof(typename Encoding<kEncoding>::Word);
  MaxMagnitude<kEncoding> largest;
  add_chunks(largest, begin, end, chunk, chunks, thread, kThreads);
  return largest.value();
}

// Returns the entry that chunk `chunk` of a launch belongs to.
TORCHNAN_HOST_DEVICE uint32_t entry_of(const Table& table, uint32_t chunk) {
  uint32_t low = 0;
  uint32_t high = table.entries;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (table.first_chunk[middle] <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// The threads that read a contiguous run together, a pack each: a warp a long one, a quarter of it a short one, such as
// the query of one head. Of still shorter ones, every thread reads words.
constexpr uint32_t kQuarter = kWarp / 4;
constexpr uint64_t kLongRun = kWarp * sizeof(Pack);          // bytes
constexpr uint64_t kShortRun = kQuarter * sizeof(Pack) / 2;  // bytes

// Returns the distance in words of a run from the first one.
template <typename Index>
TORCHNAN_HOST_DEVICE int64_t offset_of(const StridedEntry& strided, Index run) {
  int64_t offset = 0;
  for (uint32_t d = 0; d < strided.dims; ++d) {
    const auto size = static_cast<Index>(strided.size[d]);
    offset += static_cast<int64_t>(run % size) * strided.stride[d];
    run /= size;
  }
  return offset;
}

// The same as scan_chunks() for an entry whose runs are contiguous, such as rows with a gap between them. Groups of
// `together` threads read a chunk of a run.
template <FloatEncoding kEncoding>
TORCHNAN_HOST_DEVICE uint64_t scan_runs(const StridedEntry& strided, uint64_t thread, uint64_t threads,
                                        uint32_t together) {
  using Word = typename Encoding<kEncoding>::Word;
  const uint64_t bytes = strided.entry.words * sizeof(Word);
  const uint64_t chunks = (bytes + sizeof(Pack) - 1) / kChunkBytes + 1;  // of a run; the last may be empty
  const uint64_t all = words_of(strided) / strided.entry.words * chunks;
  MaxMagnitude<kEncoding> largest;
  for (uint64_t index = thread / together; index < all; index += threads / together) {
    const int64_t offset = offset_of(strided, index / chunks);
    const uint64_t begin = reinterpret_cast<uintptr_t>(static_cast<const Word*>(strided.entry.data) + offset);
    add_chunks(largest, begin, begin + bytes, index % chunks, 1, static_cast<uint32_t>(thread % together), together);
  }
  return largest.value();
}

// Returns the largest magnitude in the share of thread `thread` of `threads` in an entry that is not contiguous.
// `Index` must hold its number of words: a division of 64 bits takes a device many instructions.
template <FloatEncoding kEncoding, typename Index>
TORCHNAN_HOST_DEVICE uint64_t scan_strided(const StridedEntry& strided, uint64_t all, uint64_t thread,
                                           uint64_t threads) {
  using Word = typename Encoding<kEncoding>::Word;
  const Word* data = static_cast<const Word*>(strided.entry.data);
  const auto run = static_cast<Index>(strided.entry.words);
  MaxMagnitude<kEncoding> largest;
  for (uint64_t index = thread; index < all; index += threads) {
    const auto within = static_cast<int64_t>(static_cast<Index>(index) % run * strided.run_stride);
    largest.add_word(data[within + offset_of(strided, static_cast<Index>(index) / run)]);
  }
  return largest.value();
}

// Runs work with the encoding of an entry as a constant.
template <typename Work>
TORCHNAN_HOST_DEVICE uint64_t dispatch_encoding(const Entry& entry, const Work& work) {
  switch (entry.encoding) {
    case FloatEncoding::kFloat16:
      return work.template run<FloatEncoding::kFloat16>();
    case FloatEncoding::kBFloat16:
      return work.template run<FloatEncoding::kBFloat16>();
    case FloatEncoding::kFloat32:
      return work.template run<FloatEncoding::kFloat32>();
    case FloatEncoding::kFloat64:
      return work.template run<FloatEncoding::kFloat64>();
    case FloatEncoding::kFloat8_e5m2:
      return work.template run<FloatEncoding::kFloat8_e5m2>();
    case FloatEncoding::kFloat8_e4m3fn:
      return work.template run<FloatEncoding::kFloat8_e4m3fn>();
    case FloatEncoding::kFloat8_fnuz:
      return work.template run<FloatEncoding::kFloat8_fnuz>();
    default:
      return work.template run<FloatEncoding::kFloat8_e8m0fnu>();
  }
}

struct ChunkWork {
  const Entry& entry;
  uint64_t chunk;
  uint64_t chunks;
  uint32_t thread;

  template <FloatEncoding kEncoding>
  TORCHNAN_HOST_DEVICE uint64_t run() const {
    return scan_chunks<kEncoding>(entry, chunk, chunks, thread);
  }
};

struct StridedWork {
  const StridedEntry& strided;
  uint64_t thread;
  uint64_t threads;

  template <FloatEncoding kEncoding>
  TORCHNAN_HOST_DEVICE uint64_t run() const {
    const uint64_t all = words_of(strided);
    const uint64_t bytes = strided.entry.words * sizeof(typename Encoding<kEncoding>::Word);
    if (strided.run_stride == 1 && bytes >= kShortRun && threads % kWarp == 0)
      return scan_runs<kEncoding>(strided, thread, threads, bytes >= kLongRun ? kWarp : kQuarter);
    return all <= UINT32_MAX ? scan_strided<kEncoding, uint32_t>(strided, all, thread, threads)
                             : scan_strided<kEncoding, uint64_t>(strided, all, thread, threads);
  }
};

// Calls `scan_entry(entry, work)` for each entry whose chunks a thread of a block reads.
template <typename ScanEntry>
TORCHNAN_HOST_DEVICE void for_each_entry(const Table& table, uint32_t block, uint32_t thread, ScanEntry&& scan_entry) {
  const uint32_t chunks = table.first_chunk[table.entries];
  const uint32_t per_block = chunks_per_block(chunks);
  uint32_t chunk = block * per_block;
  const uint32_t last = chunks - chunk < per_block ? chunks : chunk + per_block;
  for (uint32_t which = entry_of(table, chunk); chunk < last; ++which) {
    const uint32_t end = table.first_chunk[which + 1] < last ? table.first_chunk[which + 1] : last;
    const Entry& entry = table.entry[which];
    scan_entry(entry, ChunkWork{entry, chunk - table.first_chunk[which], end - chunk, thread});
    chunk = end;
  }
}

}  // namespace torchnan::cuda
