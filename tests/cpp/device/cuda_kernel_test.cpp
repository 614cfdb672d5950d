// The kernels of scan_kernel.cu and the functions around them, compiled for a host in place of a GPU.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "device/cuda/scan_body.h"
#include "device/cuda/scan_library.h"
#include "check/scan/float_format.h"
#include "support/float_dtypes.h"

namespace torchnan::cuda {
namespace {

class CudaKernel : public testing::TestWithParam<c10::ScalarType> {
 protected:
  const FloatFormat format = *float_format(GetParam());
  const int64_t word = format.word_bytes;
  std::mt19937_64 random{5};
  std::vector<uint8_t> bytes;
  TorchnanScanner* scanner = nullptr;

  void SetUp() override {
    ASSERT_EQ(torchnan_scanner_make(0, &scanner), 0);
    bytes.resize(5 * kChunkBytes + 64);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  }

  void TearDown() override {
    EXPECT_EQ(torchnan_scanner_free(scanner), 0);
    EXPECT_EQ(emulated::counts.allocations, 0);
  }

  Entry entry(int64_t first_word, uint64_t words) const {
    return {bytes.data() + first_word * word, words, format.infinity - 1, 0, *encoding_of(GetParam())};
  }

  void put(int64_t at, uint64_t pattern) { std::memcpy(bytes.data() + at * word, &pattern, word); }

  uint64_t magnitude(int64_t at) const {
    uint64_t bits = 0;
    std::memcpy(&bits, bytes.data() + at * word, word);
    return (bits + format.bias) & format.mask;
  }

  uint64_t largest(const Entry& entry) const {
    const int64_t first = (static_cast<const uint8_t*>(entry.data) - bytes.data()) / word;
    uint64_t most = 0;
    for (uint64_t i = 0; i < entry.words; ++i) most = std::max(most, magnitude(first + static_cast<int64_t>(i)));
    return most;
  }

  uint64_t slot(uint64_t number) const {
    Slot read{};
    EXPECT_EQ(torchnan_scanner_read(scanner, number % kSlots, 1, &read), 0);
    return read.max_magnitude;
  }

  uint64_t alarm() const { return torchnan_scanner_words(scanner)->alarm; }
};

TEST_P(CudaKernel, EachEntryHasTheLargestMagnitudeOfItsTensor) {
  Table table{};
  const int64_t all = static_cast<int64_t>(bytes.size()) / word;
  const auto sizes = {int64_t{1},
                      15 / word + 1,
                      16 / word,
                      1000 / word,
                      static_cast<int64_t>(kChunkBytes) / word,
                      static_cast<int64_t>(kChunkBytes) / word + 1,
                      4 * static_cast<int64_t>(kChunkBytes) / word};
  for (const int64_t words : sizes) {
    for (int64_t shift = 0; shift < 3; ++shift) {
      const int64_t first = shift == 2 ? all - words : shift;
      add(table, entry(first, words));
      table.entry[table.entries - 1].event_offset = table.entries - 1;
    }
  }
  uint64_t expected_alarm = kNoAlarm;
  ASSERT_EQ(torchnan_scan(scanner, &table, 3 * kSlots - 5, nullptr), 0);
  for (uint32_t i = 0; i < table.entries; ++i) {
    const uint64_t number = 3 * kSlots - 5 + i;
    EXPECT_EQ(slot(number), largest(table.entry[i])) << "entry " << i;
    if (largest(table.entry[i]) > table.entry[i].limit) expected_alarm = std::min(expected_alarm, number);
  }
  EXPECT_EQ(alarm(), expected_alarm);
}

TEST_P(CudaKernel, AViewWithStridesIsReadWhole) {
  std::fill(bytes.begin(), bytes.end(), 0);
  if (format.bias != 0) std::fill(bytes.begin(), bytes.end(), static_cast<uint8_t>(-format.bias));
  const StridedEntry strided{entry(3, 5), 2, 2, {7, 40}, {11, 200}};  // 1,400 words
  for (const int64_t at : std::initializer_list<int64_t>{3, 3 + 8 + 6 * 11 + 39 * 200, 3 + 4 + 3 * 11 + 17 * 200}) {
    put(at, (format.infinity - 1 - format.bias) & ((uint64_t{2} << (8 * word - 1)) - 1));
    ASSERT_EQ(torchnan_scanner_clear(scanner, 9, 1, nullptr), 0);
    ASSERT_EQ(torchnan_scan_strided(scanner, &strided, 9, nullptr), 0);
    EXPECT_EQ(slot(9), format.infinity - 1) << at;
    put(at, static_cast<uint64_t>(-format.bias));
  }
  EXPECT_EQ(emulated::counts.blocks, 2u);  // not more than there is to read
  EXPECT_EQ(alarm(), kNoAlarm);
}

TEST_P(CudaKernel, LongRowsWithAGapAreReadWhole) {
  const uint64_t width = kChunkBytes / word + 3;
  for (const int64_t first : {0, 1, 5}) {
    const StridedEntry strided{entry(first, width), 1, 1, {3}, {static_cast<int64_t>(width) + 2}};
    uint64_t expected = 0;
    for (int64_t row = 0; row < 3; ++row) {
      expected = std::max(expected, largest(entry(first + row * (static_cast<int64_t>(width) + 2), width)));
    }
    ASSERT_EQ(torchnan_scanner_clear(scanner, 9, 1, nullptr), 0);
    ASSERT_EQ(torchnan_scan_strided(scanner, &strided, 9, nullptr), 0);
    EXPECT_EQ(slot(9), expected) << first;
  }
}

TEST_P(CudaKernel, TheLowestNumberIsTheAlarmUntilItIsReset) {
  put(0, static_cast<uint64_t>(format.infinity - format.bias));
  const auto scan_as = [&](uint64_t number) {
    Table table{};
    add(table, entry(0, 1));
    ASSERT_EQ(torchnan_scan(scanner, &table, number, nullptr), 0);
  };
  scan_as(20);
  scan_as(10);
  scan_as(30);
  EXPECT_EQ(alarm(), 10u);
  ASSERT_EQ(torchnan_scanner_reset_alarm(scanner, 20), 0);  // handled meanwhile by somebody else
  EXPECT_EQ(alarm(), 10u);
  ASSERT_EQ(torchnan_scanner_reset_alarm(scanner, 10), 0);
  EXPECT_EQ(alarm(), kNoAlarm);
  EXPECT_EQ(torchnan_scanner_words(scanner)->resets, 2u);
}

TEST_P(CudaKernel, ARefusedLaunchIsAnErrorAndTheNextOneIsRight) {
  Table table{};
  add(table, entry(0, 100));
  emulated::refused_launches = 1;
  const int error = torchnan_scan(scanner, &table, 1, nullptr);
  EXPECT_STREQ(torchnan_cuda_error_text(error), "too many resources requested for launch");
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // the program would take it for its own
  ASSERT_EQ(torchnan_scan(scanner, &table, 2, nullptr), 0);
  EXPECT_EQ(slot(1), 0u);
  EXPECT_EQ(slot(2), largest(table.entry[0]));
}

std::string name_of_dtype(const testing::TestParamInfo<c10::ScalarType>& test) { return c10::toString(test.param); }
INSTANTIATE_TEST_SUITE_P(EveryDtype, CudaKernel, testing::ValuesIn(kRealDtypes), name_of_dtype);

// Beyond kFillingBlocks chunks, a block reads several, of one entry or of two.
TEST(CudaKernelOfManyChunks, BlocksReadFourChunks) {
  TorchnanScanner* scanner = nullptr;
  ASSERT_EQ(torchnan_scanner_make(0, &scanner), 0);
  std::vector<float> large(kFillingBlocks * kChunkBytes / sizeof(float) + 3 * kChunkBytes / sizeof(float), 1.0F);
  Table table{};
  const std::vector<std::pair<float*, uint64_t>> parts = {
      {large.data() + 1, 5}, {large.data(), large.size() - 7}, {large.data() + large.size() - 7, 7}};
  for (const auto& [data, words] : parts) {
    add(table, {data, words, 0x7f7fffff, table.entries, FloatEncoding::kFloat32});
  }
  large[large.size() - 8] = 3.0F;
  large.back() = INFINITY;
  ASSERT_EQ(torchnan_scan(scanner, &table, 0, nullptr), 0);
  EXPECT_EQ(emulated::counts.blocks, (table.first_chunk[3] + 3) / 4);
  Slot slots[3];
  ASSERT_EQ(torchnan_scanner_read(scanner, 0, 3, slots), 0);
  EXPECT_EQ(slots[0].max_magnitude, 0x3f800000u);
  EXPECT_EQ(slots[1].max_magnitude, 0x40400000u);
  EXPECT_EQ(slots[2].max_magnitude, 0x7f800000u);
  EXPECT_EQ(torchnan_scanner_words(scanner)->alarm, 2u);
  ASSERT_EQ(torchnan_scanner_free(scanner), 0);
}

// Both ends at any address, and any number of bytes.
TEST(CudaKernelOfCopies, CopiesOnlyIfTheAlarmHasBeenRaised) {
  TorchnanScanner* scanner = nullptr;
  ASSERT_EQ(torchnan_scanner_make(0, &scanner), 0);
  std::vector<uint8_t> from(3 * kThreads * kCopyBlocks + 100);
  std::mt19937_64 random{7};
  for (uint8_t& byte : from) byte = static_cast<uint8_t>(random());
  void* reserved = nullptr;
  ASSERT_EQ(torchnan_reserve(scanner, 2 * from.size(), &reserved), 0);
  auto* const to = static_cast<uint8_t*>(reserved);
  const std::vector<uint8_t> before(to, to + 2 * from.size());
  CopyTable table{};
  uint64_t at = 0;
  for (const uint64_t bytes : {uint64_t{1}, uint64_t{15}, uint64_t{16}, uint64_t{33}, from.size() - 100}) {
    for (const uint64_t shift : {0, 5}) {
      table.entry[table.entries++] = {from.data() + shift, to + at + shift, bytes};
      if (bytes < 64) at += 64;
    }
    if (bytes >= 64) --table.entries;  // one of the large ones is enough
  }
  const auto copied_blocks = [&](uint32_t launch) {
    return torchnan_scanner_words(scanner)->copied_blocks[launch % kCopyLaunches];
  };
  ASSERT_EQ(torchnan_copy_if_alarmed(scanner, &table, 3, nullptr), 0);
  EXPECT_EQ(copied_blocks(3), 0u);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), to));

  const float bad = INFINITY;
  Table scanned{};
  add(scanned, {&bad, 1, 0x7f7fffff, 0, FloatEncoding::kFloat32});
  ASSERT_EQ(torchnan_scan(scanner, &scanned, 1, nullptr), 0);
  ASSERT_EQ(torchnan_copy_if_alarmed(scanner, &table, 3 + kCopyLaunches, nullptr), 0);
  EXPECT_EQ(copied_blocks(3), kCopyBlocks);
  std::vector<uint8_t> expected = before;
  for (uint32_t i = 0; i < table.entries; ++i) {
    const CopyEntry& entry = table.entry[i];
    std::memcpy(expected.data() + (static_cast<uint8_t*>(entry.to) - to), entry.from, entry.bytes);
  }
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), to));
  ASSERT_EQ(torchnan_copy_if_alarmed(scanner, &table, 3, nullptr), 0);  // the word of an old launch begins anew
  EXPECT_EQ(copied_blocks(3), kCopyBlocks);
  ASSERT_EQ(cudaFree(reserved), cudaSuccess);
  ASSERT_EQ(torchnan_scanner_free(scanner), 0);
}

// A step is undone by the same kernel, with both ends exchanged.
TEST(CudaKernelOfCopies, PutsBackWhatABadStepOverwrites) {
  std::vector<uint8_t> weights(2 * kThreads * kCopyBlocks + 7, 1);
  std::vector<uint8_t> room(weights.size());
  std::vector<double> rows(2 * (3 * kThreads + 1), 1.0);  // norms and magnitudes
  const Numbers magnitudes{rows.data() + 1, static_cast<uint32_t>(rows.size() / 2), 2};
  const CopyTable there{1, {{weights.data(), room.data(), weights.size()}}};
  const CopyTable back{1, {{room.data(), weights.data(), weights.size()}}};
  const auto step = [&](uint8_t written) {
    EXPECT_EQ(torchnan_copy_if_nonfinite(&there, &magnitudes, nullptr), 0);
    std::fill(weights.begin(), weights.end(), written);
    EXPECT_EQ(torchnan_copy_if_nonfinite(&back, &magnitudes, nullptr), 0);
    return weights;
  };
  const std::vector<uint8_t> untouched(weights.size());
  EXPECT_EQ(step(2), std::vector<uint8_t>(weights.size(), 2));
  EXPECT_EQ(room, untouched);
  rows[0] = INFINITY;  // a norm may overflow where every gradient is finite
  rows[1] = std::numeric_limits<double>::max();
  EXPECT_EQ(step(3), std::vector<uint8_t>(weights.size(), 3));
  EXPECT_EQ(room, untouched);
  for (const size_t at : {size_t{1}, rows.size() / 2, rows.size() - 1}) {
    for (const double bad : {INFINITY, NAN, -NAN}) {
      rows[at] = bad;
      EXPECT_EQ(step(4), std::vector<uint8_t>(weights.size(), 3)) << at;
      rows[at] = 0.0;
    }
  }
  emulated::refused_launches = 1;
  EXPECT_NE(torchnan_copy_if_nonfinite(&there, &magnitudes, nullptr), 0);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace torchnan::cuda
