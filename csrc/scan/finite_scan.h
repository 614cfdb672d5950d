// One pass over contiguous memory: is everything in it finite, and if not, what is there?
#pragma once

#include <cstdint>

#include "scan/float_format.h"
#include "scan/nonfinite_kinds.h"

namespace torchnan {

// The largest masked word among `words` words at `data` (see FloatFormat); 0 if there are none. Stops early
// once it has met a non-finite word, so a result >= format.infinity says that there is one, not which is largest.
// `data` need only be aligned to the word.
uint64_t max_magnitude(const void* data, int64_t words, const FloatFormat& format);

// The largest masked word that is finite, of the formats without bias. Reads everything.
uint64_t max_finite_magnitude(const void* data, int64_t words, const FloatFormat& format);

// Which non-finite words there are. Reads everything.
NonfiniteKinds kinds_in(const void* data, int64_t words, const FloatFormat& format);

// How many there are of each kind. Reads everything.
Counts count_words(const void* data, int64_t words, const FloatFormat& format);

inline bool all_finite(const void* data, int64_t words, const FloatFormat& format) {
  return max_magnitude(data, words, format) < format.infinity;
}

}  // namespace torchnan
