// Scans contiguous memory for non-finite values, in one pass.
#pragma once

#include <cstdint>

#include "check/scan/float_format.h"
#include "check/scan/nonfinite_kinds.h"

namespace torchnan {

// Returns the largest magnitude (see EncodingTraits) among `words` words at `data`; 0 if there are none. Stops early at
// a non-finite word, so a result >= format.infinity says that there is one, not which is largest. `data` need only be
// aligned to the word.
uint64_t max_magnitude(const void* data, int64_t words, const FloatFormat& format);

// Computes the same on as many threads as PyTorch may use.
uint64_t max_magnitude_in_parallel(const void* data, int64_t words, const FloatFormat& format);

// Bytes whose scan takes about as long as waking the other threads.
inline constexpr int64_t kWorthSharing = int64_t{1} << 20;

// Computes the same, in parallel if the memory is large enough.
inline uint64_t max_magnitude_shared(const void* data, int64_t words, const FloatFormat& format) {
  if (words * format.word_bytes < kWorthSharing) return max_magnitude(data, words, format);
  return max_magnitude_in_parallel(data, words, format);
}

// Returns the largest finite magnitude, for formats without bias. Reads everything.
uint64_t max_finite_magnitude(const void* data, int64_t words, const FloatFormat& format);

// Returns the kinds of non-finite words. Reads everything.
NonfiniteKinds kinds_in(const void* data, int64_t words, const FloatFormat& format);

// Returns the number of words of each kind. Reads everything.
Counts count_words(const void* data, int64_t words, const FloatFormat& format);

// Writes the kind of each word to `kinds`; none for a finite word.
void classify_words(const void* data, int64_t words, const FloatFormat& format, NonfiniteKinds* kinds);

inline bool all_finite(const void* data, int64_t words, const FloatFormat& format) {
  return max_magnitude(data, words, format) < format.infinity;
}

}  // namespace torchnan
