// More elements than an int32 can count. The memory is the kernel's page of zeros, mapped again and again, except where
// it is written.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <limits>

#include "check/scan/parallel_norms.h"
#include "check/scan/tensor_scan.h"
#include "support/with_isa.h"

namespace torchnan {
namespace {

constexpr int64_t kElements = (int64_t{1} << 31) + 4097;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class Zeros {
 public:
  explicit Zeros(size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Zeros() { munmap(data_, bytes_); }
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;

  void* data() const { return data_; }

 private:
  size_t bytes_;
  void* data_;
};

class LongHugeTensor : public WithIsa {
 protected:
  const Zeros memory{static_cast<size_t>(kElements * word)};
  const at::Tensor tensor = at::from_blob(memory.data(), {kElements}, at::TensorOptions(dtype));

  void spoil(int64_t element) {
    const uint64_t bits = format.first_nan - format.bias;
    std::memcpy(static_cast<char*>(memory.data()) + element * word, &bits, word);
  }
};

TEST_P(LongHugeTensor, IsBadByItsLastElement) {
  ASSERT_NE(memory.data(), MAP_FAILED);
  EXPECT_TRUE(check_finite(tensor).finite);
  spoil(kElements - 1);
  const ScanResult verdict = check_finite(tensor);
  EXPECT_FALSE(verdict.finite);
  EXPECT_EQ(verdict.bytes, kElements * word);
  EXPECT_TRUE(kinds_of(tensor).nan());
  const Counts counts = counts_of(tensor);
  EXPECT_EQ(counts.nan, 1);
  EXPECT_EQ(counts.all(), 1);
  EXPECT_FALSE(check_finite(tensor.slice(0, kElements - 3)).finite);
  EXPECT_TRUE(check_finite(tensor.slice(0, 0, kElements - 1)).finite);
}

TEST_P(LongHugeTensor, HasTheNormOfItsLastElement) {
  if (word == 1) GTEST_SKIP() << "bytes are counted, with no instruction set of their own";
  spoil(kElements - 1);
  EXPECT_TRUE(std::isnan(norms_of(tensor)[0].max_abs()));
}

INSTANTIATE_TEST_SUITE_P(Long, LongHugeTensor, every_dtype_and_isa(), dtype_and_isa);

// The walk for the report, which is the same for every instruction set.
TEST(LongHugeTensor, ReportsTheLastElementByItsIndex) {
  const Zeros memory(static_cast<size_t>(kElements));
  const at::Tensor tensor = at::from_blob(memory.data(), {kElements}, at::TensorOptions(at::kFloat8_e4m3fn));
  static_cast<uint8_t*>(memory.data())[kElements - 1] = 0x7f;
  const TensorStats stats = compute_stats(tensor);
  EXPECT_EQ(stats.tally.nan, 1);
  EXPECT_EQ(stats.first_index, std::vector<int64_t>{kElements - 1});
}

TEST(LongHugeTensor, CountsBeyondAnInt32) {
  const at::Tensor tensor = at::full({}, kNaN).expand({kElements});
  EXPECT_EQ(compute_stats(tensor).tally.nan, kElements);
  EXPECT_FALSE(check_finite(tensor).finite);
  EXPECT_EQ(norms_of(at::ones({}).expand({kElements}))[0].norm(), std::sqrt(static_cast<double>(kElements)));
}

TEST(LongHugeTensor, IsOfTheElementsThatAStridedViewShows) {
  const Zeros memory(static_cast<size_t>(kElements));
  const at::Tensor tensor = at::from_blob(memory.data(), {kElements}, at::TensorOptions(at::kFloat8_e5m2));
  static_cast<uint8_t*>(memory.data())[kElements - 1] = 0x7f;
  const at::Tensor with_it = tensor.slice(0, 0, kElements, 1024);
  EXPECT_FALSE(check_finite(with_it).finite);
  EXPECT_EQ(counts_of(with_it).nan, 1);
  EXPECT_EQ(compute_stats(with_it).first_index, std::vector<int64_t>{(kElements - 1) / 1024});
  EXPECT_TRUE(check_finite(tensor.slice(0, 1, kElements, 1024)).finite);
  EXPECT_TRUE(std::isnan(norms_of(tensor)[0].norm()));
}

}  // namespace
}  // namespace torchnan
