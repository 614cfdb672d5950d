// The body of the CUDA kernel, run on the host as on the device: every thread of every block, one after the other.
#include "device/cuda/scan_body.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check/scan/float_format.h"
#include "support/float_dtypes.h"

namespace torchnan::cuda {
namespace {

// The results of a launch: the slots, and the alarm.
struct Launched {
  std::vector<Slot> slots;
  uint64_t alarm = kNoAlarm;

  void put(const Entry& entry, uint64_t max_magnitude, uint64_t first) {
    const uint64_t number = first + entry.event_offset;
    Slot& slot = slots[number % slots.size()];
    slot.max_magnitude = std::max(slot.max_magnitude, max_magnitude);
    if (max_magnitude > entry.limit) alarm = std::min(alarm, number);
  }
};

Launched launch(const Table& table, uint64_t first = 0) {
  Launched launched{std::vector<Slot>(kMaxEntries)};
  for (uint32_t block = 0; block < blocks_for(table.first_chunk[table.entries]); ++block) {
    for (uint32_t thread = 0; thread < kThreads; ++thread) {
      for_each_entry(table, block, thread, [&](const Entry& entry, const ChunkWork& work) {
        launched.put(entry, dispatch_encoding(entry, work), first);
      });
    }
  }
  return launched;
}

Launched launch(const StridedEntry& strided, uint64_t threads) {
  Launched launched{std::vector<Slot>(1)};
  for (uint64_t thread = 0; thread < threads; ++thread) {
    launched.put(strided.entry, dispatch_encoding(strided.entry, StridedWork{strided, thread, threads}), 0);
  }
  return launched;
}

Table table_of(const std::vector<Entry>& entries) {
  Table table{};
  for (const Entry& entry : entries) add(table, entry);
  return table;
}

class CudaScan : public testing::TestWithParam<c10::ScalarType> {
 protected:
  const c10::ScalarType dtype = GetParam();
  const FloatFormat format = *float_format(dtype);
  const FloatEncoding encoding = *encoding_of(dtype);
  const int64_t word = format.word_bytes;

  Entry entry(const uint8_t* data, uint64_t words) const { return {data, words, format.infinity - 1, 0, encoding}; }

  void put(std::vector<uint8_t>& buffer, int64_t byte, uint64_t bits) const {
    std::memcpy(buffer.data() + byte, &bits, word);
  }

  uint64_t magnitude_at(const uint8_t* data) const {
    uint64_t bits = 0;
    std::memcpy(&bits, data, word);
    return (bits + format.bias) & format.mask;
  }

  // The definition, one word at a time.
  void expect_slot(const Slot& slot, const std::vector<uint64_t>& magnitudes) const {
    ASSERT_EQ(slot.max_magnitude, *std::max_element(magnitudes.begin(), magnitudes.end()));
  }

  std::vector<uint64_t> magnitudes(const uint8_t* data, uint64_t words) const {
    std::vector<uint64_t> all;
    for (uint64_t i = 0; i < words; ++i) all.push_back(magnitude_at(data + i * word));
    return all;
  }

  static std::vector<uint8_t> random_bytes(int64_t bytes) {
    std::mt19937_64 random(1);
    std::vector<uint8_t> buffer(bytes);
    for (auto& byte : buffer) byte = static_cast<uint8_t>(random());
    return buffer;
  }
};

TEST_P(CudaScan, SpellsWordsAsTheHostDoes) {
  const EncodingTraits traits = traits_of(encoding);
  EXPECT_EQ(traits.word_bytes, format.word_bytes);
  EXPECT_EQ(traits.bias, format.bias);
  EXPECT_EQ(traits.mask, format.mask);
  EXPECT_EQ(traits.infinity, format.infinity);
}

TEST_P(CudaScan, EqualsTheDefinitionForEverySizeAndAlignment) {
  const int64_t most = 4 * static_cast<int64_t>(sizeof(Pack)) / word + 1;
  const std::vector<uint8_t> buffer = random_bytes(most * word + 64);
  for (int64_t offset = 0; offset < 32; offset += word) {
    for (int64_t words = 1; words <= most; ++words) {
      SCOPED_TRACE(testing::Message() << "offset " << offset << ", words " << words);
      const uint8_t* data = buffer.data() + offset;
      expect_slot(launch(table_of({entry(data, words)})).slots[0], magnitudes(data, words));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(CudaScan, FindsOneBadWordAtEveryPositionAroundTheEndsOfChunks) {
  const int64_t bytes = 3 * static_cast<int64_t>(kChunkBytes);
  std::vector<uint8_t> buffer(bytes + 64, 0);
  for (const int64_t offset : {int64_t{0}, word, 16 - word, int64_t{16}}) {
    const int64_t words = (bytes - offset) / word;
    for (int64_t chunk = 0; chunk <= 3; ++chunk) {
      for (int64_t byte = chunk * static_cast<int64_t>(kChunkBytes) - 64; byte < bytes + 64; byte += word) {
        if (byte > chunk * static_cast<int64_t>(kChunkBytes) + 64) break;
        if (byte < offset || byte + word > offset + words * word) continue;
        put(buffer, byte, format.infinity - format.bias);
        const Launched launched = launch(table_of({entry(buffer.data() + offset, words)}), 7 * kMaxEntries);
        ASSERT_EQ(launched.alarm, 7u * kMaxEntries) << "offset " << offset << ", byte " << byte;
        ASSERT_EQ(launched.slots[0].max_magnitude, format.infinity);
        put(buffer, byte, 0);
      }
    }
  }
}

TEST_P(CudaScan, ReadsNothingBesideTheTensor) {
  std::vector<uint8_t> buffer(256, 0xff);  // a NaN in every format but fnuz, whose NaN is 0x80
  if (format.bias != 0) std::fill(buffer.begin(), buffer.end(), 0x80);
  for (int64_t offset = 0; offset <= 48; offset += word) {
    for (int64_t words = 1; words <= 64 / word; ++words) {
      std::vector<uint8_t> inside = buffer;
      std::fill_n(inside.begin() + offset, words * word, 0);
      const Launched launched = launch(table_of({entry(inside.data() + offset, words)}));
      ASSERT_EQ(launched.alarm, kNoAlarm) << "offset " << offset << ", words " << words;
    }
  }
}

std::vector<uint64_t> patterns_of(const FloatFormat& format) {
  std::vector<uint64_t> patterns;
  if (format.word_bytes <= 2) {
    for (uint64_t p = 0; p < (uint64_t{1} << (8 * format.word_bytes)); ++p) patterns.push_back(p);
    return patterns;
  }
  const uint64_t sign = uint64_t{1} << (8 * format.word_bytes - 1);
  for (const uint64_t base : {uint64_t{0}, format.infinity, format.first_nan, format.mask}) {
    for (const int64_t d : {-2, -1, 0, 1, 2}) {
      patterns.push_back((base + d) & format.mask);
      patterns.push_back(((base + d) & format.mask) | sign);
    }
  }
  return patterns;
}

TEST_P(CudaScan, AlarmsExactlyForNonfiniteValuesOfTheType) {
  std::vector<uint8_t> buffer(48, 0);
  for (const uint64_t pattern : patterns_of(format)) {
    for (const int64_t at : {int64_t{0}, 16 - word, int64_t{16}}) {  // in a partial pack at the end, and in a whole one
      put(buffer, at, pattern);
      const Launched launched = launch(table_of({entry(buffer.data(), 48 / word)}));
      ASSERT_EQ(launched.alarm == kNoAlarm, std::isfinite(value_of(dtype, pattern))) << std::hex << pattern;
      put(buffer, at, 0);
    }
  }
}

TEST_P(CudaScan, ReadsEveryViewWithStrides) {
  std::vector<uint8_t> buffer = random_bytes(8192);
  const auto expect = [&](StridedEntry strided, const std::vector<int64_t>& offsets) {
    std::vector<uint64_t> expected;
    for (const int64_t offset : offsets) {
      expected.push_back(magnitude_at(static_cast<const uint8_t*>(strided.entry.data) + offset * word));
    }
    for (const uint64_t threads : {uint64_t{1}, uint64_t{7}, uint64_t{4096}}) {
      expect_slot(launch(strided, threads).slots[0], expected);
    }
  };
  // Every other word; rows of 5 words, 9 apart; three dimensions with a negative-free, permuted layout.
  expect({entry(buffer.data(), 40), 2, 0, {}, {}}, [] {
    std::vector<int64_t> offsets;
    for (int64_t i = 0; i < 40; ++i) offsets.push_back(2 * i);
    return offsets;
  }());
  expect({entry(buffer.data() + word, 5), 1, 1, {11}, {9}}, [] {
    std::vector<int64_t> offsets;
    for (int64_t row = 0; row < 11; ++row) {
      for (int64_t i = 0; i < 5; ++i) offsets.push_back(9 * row + i);
    }
    return offsets;
  }());
  expect({entry(buffer.data(), 3), 4, 2, {5, 4}, {1, 20}}, [] {
    std::vector<int64_t> offsets;
    for (int64_t a = 0; a < 5; ++a) {
      for (int64_t b = 0; b < 4; ++b) {
        for (int64_t i = 0; i < 3; ++i) offsets.push_back(a + 20 * b + 4 * i);
      }
    }
    return offsets;
  }());
}

// Rows of a matrix with a gap after each: shorter than a pack, than a quarter of a warp reads, than a warp reads, and
// longer than two chunks.
TEST_P(CudaScan, ReadsRowsAndNothingBetweenThem) {
  const int64_t rows = 5;
  const uint64_t bad = format.infinity - format.bias;
  for (const int64_t bytes : {8, 64, 72, 128, 520, 2 * static_cast<int>(kChunkBytes) + 40}) {
    const int64_t width = bytes / word;
    const int64_t apart = width + 3;
    std::vector<uint8_t> buffer(rows * apart * word + 64);
    for (size_t at = 0; at + word <= buffer.size(); at += word) put(buffer, static_cast<int64_t>(at), bad);
    for (const int64_t offset : {int64_t{0}, word, int64_t{16}}) {
      SCOPED_TRACE(testing::Message() << bytes << " bytes a row, offset " << offset);
      std::vector<uint8_t> inside = buffer;
      for (int64_t row = 0; row < rows; ++row)
        std::fill_n(inside.begin() + offset + row * apart * word, width * word, 0);
      const StridedEntry strided{entry(inside.data() + offset, width), 1, 1, {rows}, {apart}};
      for (const uint64_t threads : {uint64_t{1}, uint64_t{7}, uint64_t{32}, uint64_t{96}, uint64_t{512}}) {
        ASSERT_EQ(launch(strided, threads).alarm, kNoAlarm) << threads;
        for (int64_t row = 0; row < rows; ++row) {
          const int64_t chunk = std::min(static_cast<int64_t>(kChunkBytes) / word, width - 1);
          for (const int64_t at : {int64_t{0}, width / 2, chunk, std::min(2 * chunk, width - 1), width - 1}) {
            const int64_t byte = offset + (row * apart + at) * word;
            put(inside, byte, bad);
            ASSERT_EQ(launch(strided, threads).slots[0].max_magnitude, format.infinity) << byte << ", " << threads;
            put(inside, byte, 0);
          }
        }
      }
    }
  }
}

TEST_P(CudaScan, KeepsManyEntriesApart) {
  const std::vector<uint8_t> buffer = random_bytes(4096);
  std::vector<Entry> entries;
  std::mt19937_64 random(3);
  for (uint32_t i = 0; i < kMaxEntries; ++i) {
    const uint64_t words = 1 + random() % 64;
    entries.push_back(entry(buffer.data() + random() % (4096 / word - 64) * word, words));
    entries.back().event_offset = i;
  }
  const Launched launched = launch(table_of(entries));
  for (uint32_t i = 0; i < kMaxEntries; ++i) {
    expect_slot(launched.slots[i], magnitudes(static_cast<const uint8_t*>(entries[i].data), entries[i].words));
    if (HasFatalFailure()) return;
  }
}

TEST_P(CudaScan, TheAlarmIsTheFirstEntryThatPassesItsLimit) {
  std::vector<uint8_t> buffer(64, 0);
  put(buffer, 32, 3);
  std::vector<Entry> entries(5, entry(buffer.data(), 64 / word));
  for (Entry& e : entries) e.limit = magnitude_at(buffer.data() + 32);
  for (uint32_t i = 0; i < 5; ++i) entries[i].event_offset = i;
  entries[2].limit = entries[4].limit = magnitude_at(buffer.data() + 32) - 1;  // an assumption that does not hold
  EXPECT_EQ(launch(table_of(entries), 100).alarm, 102u);
}

// Only the chunk with the word is run; pages that are never written cost nothing.
TEST_P(CudaScan, CountsBeyondTwoToTheThirtyTwoWords) {
  const uint64_t words = (uint64_t{1} << 32) + 5;
  const uint64_t bytes = words * word;
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  auto* data = static_cast<uint8_t*>(pages);
  const uint64_t bad = format.infinity - format.bias;
  std::memcpy(data + bytes - word, &bad, word);
  const Table table = table_of({entry(data, words)});
  const uint32_t last = table.first_chunk[1] - 1;
  EXPECT_EQ(last, bytes / kChunkBytes);
  uint64_t most = 0;
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    most = std::max(most, dispatch_encoding(table.entry[0], ChunkWork{table.entry[0], last, 1, thread}));
  }
  EXPECT_EQ(most, format.infinity);
  munmap(pages, bytes);
}

TEST(CudaTable, IsFullAtItsEntriesAndAtTheLimitOfALaunch) {
  Table table{};
  const Entry huge{nullptr, uint64_t{1} << 47, 0, 0, FloatEncoding::kFloat8_e5m2};
  EXPECT_TRUE(add(table, {nullptr, 1, 0, 0, FloatEncoding::kFloat32}));
  EXPECT_TRUE(add(table, {nullptr, uint64_t{1} << 40, 0, 0, FloatEncoding::kFloat32}));
  EXPECT_FALSE(add(table, huge));
  while (table.entries < kMaxEntries) EXPECT_TRUE(add(table, {nullptr, 1, 0, 0, FloatEncoding::kFloat32}));
  EXPECT_FALSE(add(table, {nullptr, 1, 0, 0, FloatEncoding::kFloat32}));
  EXPECT_EQ(table.entries, kMaxEntries);
}

std::string name_of_dtype(const testing::TestParamInfo<c10::ScalarType>& test) { return c10::toString(test.param); }
INSTANTIATE_TEST_SUITE_P(EveryDtype, CudaScan, testing::ValuesIn(kRealDtypes), name_of_dtype);

}  // namespace
}  // namespace torchnan::cuda
