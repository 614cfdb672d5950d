#include "check/scan/finite_scan.h"

#include "check/scan/isa_dispatch.h"

namespace torchnan {
namespace {

constexpr int64_t kLaneBytes = 256;     // accumulators: four AVX-512 registers
constexpr int64_t kStepBytes = 64;      // for memory too short for them
constexpr int64_t kBlockBytes = 65536;  // between two checks of the result
constexpr int64_t kLineBytes = 64;      // of the cache; a read across two lines costs twice
constexpr int64_t kLongBytes = 4096;    // from here on it pays to start at a line

template <typename T>
[[gnu::always_inline]] inline T smaller(T a, T b) {
  return b < a ? b : a;
}

// Computes the largest magnitude. A maximum may see a word twice, so the last, partial step overlaps the words before
// it. Word is signed if the mask clears the sign: before AVX-512, processors compare signed words faster.
template <typename Word, FloatEncoding kEncoding>
struct Magnitude {
  static constexpr Word kBias = static_cast<Word>(Encoding<kEncoding>::kBias);
  static constexpr Word kMask = static_cast<Word>(Encoding<kEncoding>::kMask);

  [[gnu::always_inline]] static void raise(Word& best, Word word) {
    const Word w = static_cast<Word>(static_cast<Word>(word + kBias) & kMask);
    best = best < w ? w : best;
  }

  [[gnu::always_inline]] static Word of_few(const Word* p, int64_t n) {
    Word best = 0;
    for (int64_t i = 0; i < n; ++i) raise(best, p[i]);
    return best;
  }

  // Needs at least one word for each lane. Loops over lanes, so that the compiler keeps them in registers.
  template <int64_t kBytes>
  [[gnu::always_inline]] static Word of_lanes(const Word* p, int64_t n) {
    constexpr int64_t kLanes = kBytes / sizeof(Word);
    Word lanes[kLanes] = {};
    for (int64_t i = 0; i + kLanes <= n; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) raise(lanes[lane], p[i + lane]);
    }
    for (int64_t lane = 0; lane < kLanes; ++lane) raise(lanes[lane], p[n - kLanes + lane]);
    Word best = 0;
    for (int64_t lane = 0; lane < kLanes; ++lane) best = best < lanes[lane] ? lanes[lane] : best;
    return best;
  }

  [[gnu::always_inline]] static Word of_block(const Word* p, int64_t n) {
    constexpr int64_t kBytes = sizeof(Word);
    if (n >= kLaneBytes / kBytes) return of_lanes<kLaneBytes>(p, n);
    if (n >= kStepBytes / kBytes) return of_lanes<kStepBytes>(p, n);
    return of_few(p, n);
  }
};

// Ends the first block at a cache line, if the data do not start at one.
[[gnu::always_inline]] inline int64_t first_block_bytes(const void* data) {
  const int64_t past_line = reinterpret_cast<uintptr_t>(data) % kLineBytes;
  return past_line == 0 ? kBlockBytes : kLineBytes - past_line;
}

template <typename Word, FloatEncoding kEncoding>
[[gnu::always_inline]] inline uint64_t scan(const void* data, int64_t words, uint64_t infinity) {
  constexpr int64_t kBytes = sizeof(Word);
  const Word* p = static_cast<const Word*>(data);
  if (words * kBytes < kLongBytes) return static_cast<uint64_t>(Magnitude<Word, kEncoding>::of_block(p, words));
  int64_t block = first_block_bytes(data) / kBytes;
  Word best = 0;
  for (int64_t i = 0; i < words; i += block, block = kBlockBytes / kBytes) {
    const Word found = Magnitude<Word, kEncoding>::of_block(p + i, smaller(block, words - i));
    best = best < found ? found : best;
    if (static_cast<uint64_t>(best) >= infinity) break;
  }
  return static_cast<uint64_t>(best);
}

// The traits of a format as words of its width.
template <typename Word>
struct Encoded {
  Word mask, bias, first_nan, posinf, neginf;

  [[gnu::always_inline]] explicit Encoded(const FloatFormat& format)
      : mask(static_cast<Word>(format.mask)),
        bias(static_cast<Word>(format.bias)),
        first_nan(static_cast<Word>(format.first_nan)),
        posinf(static_cast<Word>(format.infinity)),
        neginf(static_cast<Word>(format.infinity | ~format.mask)) {}

  [[gnu::always_inline]] bool is_nan(Word w) const {
    return static_cast<Word>(static_cast<Word>(w + bias) & mask) >= first_nan;
  }
};

// Costs three ORs per word.
template <typename Word>
[[gnu::always_inline]] inline NonfiniteKinds scan_kinds(const void* data, int64_t words, const FloatFormat& format) {
  const Word* p = static_cast<const Word*>(data);
  const Encoded<Word> encoded(format);
  Word any_nan = 0;
  Word any_posinf = 0;
  Word any_neginf = 0;
  for (int64_t i = 0; i < words; ++i) {
    const Word w = p[i];
    any_nan |= static_cast<Word>(encoded.is_nan(w));
    any_posinf |= static_cast<Word>(w == encoded.posinf);
    any_neginf |= static_cast<Word>(w == encoded.neginf);
  }
  NonfiniteKinds kinds;
  if (any_nan != 0) kinds |= NonfiniteKinds::only_nan();
  if (!format.has_infinity()) return kinds;
  if (any_posinf != 0) kinds |= NonfiniteKinds::only_posinf();
  if (any_neginf != 0) kinds |= NonfiniteKinds::only_neginf();
  return kinds;
}

template <typename Word>
[[gnu::always_inline]] inline Counts count_kinds(const void* data, int64_t words, const FloatFormat& format) {
  constexpr int64_t kBlock = kBlockBytes / sizeof(Word);
  const Encoded<Word> encoded(format);
  Counts counts;
  for (int64_t first = 0; first < words; first += kBlock) {
    const Word* p = static_cast<const Word*>(data) + first;
    const int64_t n = smaller(kBlock, words - first);
    uint32_t nan = 0;
    uint32_t pos = 0;
    uint32_t neg = 0;
    for (int64_t i = 0; i < n; ++i) {
      const Word w = p[i];
      nan += encoded.is_nan(w);
      pos += w == encoded.posinf;
      neg += w == encoded.neginf;
    }
    counts += format.has_infinity() ? Counts{nan, pos, neg} : Counts{nan, 0, 0};
  }
  return counts;
}

template <typename Word>
[[gnu::always_inline]] inline void classify(const void* data, int64_t words, const FloatFormat& format,
                                            NonfiniteKinds* kinds) {
  const Word* p = static_cast<const Word*>(data);
  const Encoded<Word> encoded(format);
  const bool has_infinity = format.has_infinity();
  for (int64_t i = 0; i < words; ++i) {
    const Word w = p[i];
    kinds[i] = {encoded.is_nan(w), has_infinity & (w == encoded.posinf), has_infinity & (w == encoded.neginf)};
  }
}

template <typename Word>
uint64_t max_finite(const void* data, int64_t words, const FloatFormat& format) {
  const Word* p = static_cast<const Word*>(data);
  const auto mask = static_cast<Word>(format.mask);
  const auto infinity = static_cast<Word>(format.infinity);
  Word largest = 0;
  for (int64_t i = 0; i < words; ++i) {
    const Word w = static_cast<Word>(p[i] & mask);
    const Word finite = w < infinity ? w : Word{0};
    largest = largest < finite ? finite : largest;
  }
  return largest;
}

template <typename Word, FloatEncoding kEncoding>
constexpr IsaDispatch<&scan<Word, kEncoding>> kScan;
template <typename Word>
constexpr IsaDispatch<&scan_kinds<Word>> kScanKinds;
template <typename Word>
constexpr IsaDispatch<&count_kinds<Word>> kCountKinds;
template <typename Word>
constexpr IsaDispatch<&classify<Word>> kClassify;

}  // namespace

// Encodings of one width, bias and mask share a loop: they differ in `infinity` alone.
uint64_t max_magnitude(const void* data, int64_t words, const FloatFormat& format) {
  switch (format.word_bytes) {
    case 2:
      return kScan<int16_t, FloatEncoding::kFloat16>(data, words, format.infinity);
    case 4:
      return kScan<int32_t, FloatEncoding::kFloat32>(data, words, format.infinity);
    case 8:
      return kScan<int64_t, FloatEncoding::kFloat64>(data, words, format.infinity);
    default:
      if (format.bias != 0) return kScan<uint8_t, FloatEncoding::kFloat8_fnuz>(data, words, format.infinity);
      if (format.mask == 0xff) return kScan<uint8_t, FloatEncoding::kFloat8_e8m0fnu>(data, words, format.infinity);
      return kScan<uint8_t, FloatEncoding::kFloat8_e4m3fn>(data, words, format.infinity);
  }
}

// Calls run(word) with a word of the width of the format.
template <typename Run>
static auto with_word_of(const FloatFormat& format, Run&& run) {
  switch (format.word_bytes) {
    case 2:
      return run(uint16_t{});
    case 4:
      return run(uint32_t{});
    case 8:
      return run(uint64_t{});
    default:
      return run(uint8_t{});
  }
}

uint64_t max_finite_magnitude(const void* data, int64_t words, const FloatFormat& format) {
  return with_word_of(format, [&](auto word) { return max_finite<decltype(word)>(data, words, format); });
}

NonfiniteKinds kinds_in(const void* data, int64_t words, const FloatFormat& format) {
  return with_word_of(format, [&](auto word) { return kScanKinds<decltype(word)>(data, words, format); });
}

Counts count_words(const void* data, int64_t words, const FloatFormat& format) {
  return with_word_of(format, [&](auto word) { return kCountKinds<decltype(word)>(data, words, format); });
}

void classify_words(const void* data, int64_t words, const FloatFormat& format, NonfiniteKinds* kinds) {
  with_word_of(format, [&](auto word) { kClassify<decltype(word)>(data, words, format, kinds); });
}

}  // namespace torchnan
