// The work of one thread of the scan. Compiled for the device and, for tests without one, for the host.
#pragma once

#include <stdint.h>

#include "scan/float_encoding.h"
#include "device/cuda/scan_table.h"

#ifdef __CUDACC__
#define TORCHNAN_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define TORCHNAN_HOST_DEVICE inline
#endif

namespace torchnan::cuda {

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

// Returns `a` if it is below `b`, else zero.
template <typename Word>
TORCHNAN_HOST_DEVICE typename Packed<Word>::Register packed_below(typename Packed<Word>::Register a,
                                                                  typename Packed<Word>::Register b) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(Word) == 1) return a & __vcmpltu4(a, b);
  if constexpr (sizeof(Word) == 2) return a & __vcmpltu2(a, b);
  if constexpr (sizeof(Word) >= 4) return a < b ? a : 0;
#else
  return for_each_word<Word>(a, b, [](Word x, Word y) { return x < y ? x : Word{0}; });
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

// The largest magnitudes that one thread has read.
template <FloatEncoding kEncoding, bool kTrackMaxFinite>
class MaxAccumulator {
 public:
  using Word = typename Encoding<kEncoding>::Word;
  using Register = typename Packed<Word>::Register;

  TORCHNAN_HOST_DEVICE void add(Register words) {
    constexpr Register kMask = broadcast<Word>(Encoding<kEncoding>::kMask);
    if constexpr (Encoding<kEncoding>::kBias != 0)
      words = packed_add<Word>(words, broadcast<Word>(Encoding<kEncoding>::kBias));
    const Register magnitudes = words & kMask;
    max_magnitude_ = packed_max<Word>(max_magnitude_, magnitudes);
    if constexpr (kTrackMaxFinite) {
      constexpr Register kInfinity = broadcast<Word>(Encoding<kEncoding>::kInfinity);
      max_finite_ = packed_max<Word>(max_finite_, packed_below<Word>(magnitudes, kInfinity));
    }
  }

  // Adds one word, broadcast to the whole register, so that a bias applies to every position alike.
  TORCHNAN_HOST_DEVICE void add_word(Word word) { add(broadcast<Word>(word)); }

  TORCHNAN_HOST_DEVICE uint64_t max_magnitude() const { return largest(max_magnitude_); }
  TORCHNAN_HOST_DEVICE uint64_t max_finite() const { return largest(max_finite_); }

 private:
  static TORCHNAN_HOST_DEVICE uint64_t largest(Register words) {
    Word best = 0;
    for (unsigned at = 0; at < 8 * sizeof(Register); at += 8 * sizeof(Word)) {
      const Word word = static_cast<Word>(words >> at);
      best = best < word ? word : best;
    }
    return best;
  }

  Register max_magnitude_ = 0;
  Register max_finite_ = 0;
};

struct ScanMaxima {
  uint64_t max_magnitude = 0;
  uint64_t max_finite = 0;
};

// The unit of a 16-byte load.
struct alignas(16) Pack {
  uint32_t part[4];
};

template <FloatEncoding kEncoding, bool kTrackMaxFinite>
TORCHNAN_HOST_DEVICE void add_pack(MaxAccumulator<kEncoding, kTrackMaxFinite>& maxima, const Pack& pack) {
  if constexpr (sizeof(typename Encoding<kEncoding>::Word) == 8) {
    maxima.add(pack.part[0] | static_cast<uint64_t>(pack.part[1]) << 32);
    maxima.add(pack.part[2] | static_cast<uint64_t>(pack.part[3]) << 32);
  } else {
    for (uint32_t part : pack.part) maxima.add(part);
  }
}

// Scans the share of thread `thread` of kThreads in a chunk of an entry.
template <FloatEncoding kEncoding, bool kTrackMaxFinite>
TORCHNAN_HOST_DEVICE ScanMaxima scan_chunk(const Entry& entry, uint64_t chunk, uint32_t thread) {
  using Word = typename Encoding<kEncoding>::Word;
  constexpr uint64_t kPack = sizeof(Pack);
  const uint64_t begin = reinterpret_cast<uintptr_t>(entry.data);
  const uint64_t end = begin + entry.words * sizeof(Word);
  const uint64_t from = begin / kPack * kPack + chunk * kChunkBytes;
  const uint64_t to = from + kChunkBytes < end ? from + kChunkBytes : end;

  MaxAccumulator<kEncoding, kTrackMaxFinite> maxima;
  for (uint64_t at = from + thread * kPack; at < to; at += kThreads * kPack) {
    if (at >= begin && at + kPack <= to) {
      add_pack(maxima, *reinterpret_cast<const Pack*>(at));
      continue;
    }
    const uint64_t first = at < begin ? begin : at;  // the partial blocks at both ends
    const uint64_t last = at + kPack < to ? at + kPack : to;
    for (uint64_t word = first; word < last; word += sizeof(Word)) {
      maxima.add_word(*reinterpret_cast<const Word*>(word));
    }
  }
  return {maxima.max_magnitude(), maxima.max_finite()};
}

// Returns the entry of which block `block` of a launch reads a chunk.
TORCHNAN_HOST_DEVICE uint32_t entry_of(const Table& table, uint32_t block) {
  uint32_t low = 0;
  uint32_t high = table.entries;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (table.first_chunk[middle] <= block) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Scans the share of thread `thread` of `threads` in the launch for an entry that is not contiguous.
template <FloatEncoding kEncoding, bool kTrackMaxFinite>
TORCHNAN_HOST_DEVICE ScanMaxima scan_strided(const StridedEntry& strided, uint64_t thread, uint64_t threads) {
  using Word = typename Encoding<kEncoding>::Word;
  const Word* data = static_cast<const Word*>(strided.entry.data);
  uint64_t all = strided.entry.words;
  for (uint32_t d = 0; d < strided.dims; ++d) all *= strided.size[d];

  MaxAccumulator<kEncoding, kTrackMaxFinite> maxima;
  for (uint64_t index = thread; index < all; index += threads) {
    uint64_t rest = index / strided.entry.words;
    int64_t offset = static_cast<int64_t>(index % strided.entry.words * strided.run_stride);
    for (uint32_t d = 0; d < strided.dims; ++d) {
      offset += static_cast<int64_t>(rest % strided.size[d]) * strided.stride[d];
      rest /= strided.size[d];
    }
    maxima.add_word(data[offset]);
  }
  return {maxima.max_magnitude(), maxima.max_finite()};
}

// Run work with the encoding and track_max_finite of an entry as constants.
template <FloatEncoding kEncoding, typename Work>
TORCHNAN_HOST_DEVICE ScanMaxima dispatch_tracking(bool track_max_finite, const Work& work) {
  return track_max_finite ? work.template run<kEncoding, true>() : work.template run<kEncoding, false>();
}

template <typename Work>
TORCHNAN_HOST_DEVICE ScanMaxima dispatch_encoding(const Entry& entry, const Work& work) {
  switch (entry.encoding) {
    case FloatEncoding::kFloat16:
      return dispatch_tracking<FloatEncoding::kFloat16>(entry.track_max_finite, work);
    case FloatEncoding::kBFloat16:
      return dispatch_tracking<FloatEncoding::kBFloat16>(entry.track_max_finite, work);
    case FloatEncoding::kFloat32:
      return dispatch_tracking<FloatEncoding::kFloat32>(entry.track_max_finite, work);
    case FloatEncoding::kFloat64:
      return dispatch_tracking<FloatEncoding::kFloat64>(entry.track_max_finite, work);
    case FloatEncoding::kFloat8_e5m2:
      return dispatch_tracking<FloatEncoding::kFloat8_e5m2>(entry.track_max_finite, work);
    case FloatEncoding::kFloat8_e4m3fn:
      return dispatch_tracking<FloatEncoding::kFloat8_e4m3fn>(entry.track_max_finite, work);
    case FloatEncoding::kFloat8_fnuz:
      return dispatch_tracking<FloatEncoding::kFloat8_fnuz>(entry.track_max_finite, work);
    default:
      return dispatch_tracking<FloatEncoding::kFloat8_e8m0fnu>(entry.track_max_finite, work);
  }
}

struct ChunkWork {
  const Entry& entry;
  uint64_t chunk;
  uint32_t thread;

  template <FloatEncoding kEncoding, bool kTrackMaxFinite>
  TORCHNAN_HOST_DEVICE ScanMaxima run() const {
    return scan_chunk<kEncoding, kTrackMaxFinite>(entry, chunk, thread);
  }
};

struct StridedWork {
  const StridedEntry& strided;
  uint64_t thread;
  uint64_t threads;

  template <FloatEncoding kEncoding, bool kTrackMaxFinite>
  TORCHNAN_HOST_DEVICE ScanMaxima run() const {
    return scan_strided<kEncoding, kTrackMaxFinite>(strided, thread, threads);
  }
};

}  // namespace torchnan::cuda
