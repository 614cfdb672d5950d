// The speed of the finite scan on one thread beside the fastest read of the same memory, as a JSON object on stdout.
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "check/scan/finite_scan.h"
#include "check/scan/float_format.h"

namespace {

using torchnan::FloatFormat;

struct Level {
  const char* name;
  int64_t bytes;
  int rounds;
};

struct Dtype {
  const char* name;
  c10::ScalarType dtype;
};

constexpr Dtype kDtypes[] = {
    {"float16", c10::ScalarType::Half},
    {"bfloat16", c10::ScalarType::BFloat16},
    {"float32", c10::ScalarType::Float},
    {"float64", c10::ScalarType::Double},
    {"float8_e4m3fn", c10::ScalarType::Float8_e4m3fn},
    {"float8_e4m3fnuz", c10::ScalarType::Float8_e4m3fnuz},
};
constexpr int64_t kSmallBytes[] = {64, 256, 1024, 4096};
constexpr int64_t kBytesPerTiming = 4 << 20;  // long enough for the clock

// Whole vectors only: the sizes here are multiples of all of them.
template <typename Wide, int kAccumulators>
[[gnu::always_inline]] inline uint64_t read_all(const char* data, int64_t bytes) {
  const Wide* p = reinterpret_cast<const Wide*>(data);
  Wide seen[kAccumulators] = {};
  for (int64_t i = 0; i + kAccumulators <= bytes / static_cast<int64_t>(sizeof(Wide)); i += kAccumulators) {
#pragma GCC unroll 8
    for (int k = 0; k < kAccumulators; ++k) seen[k] |= p[i + k];
  }
#pragma GCC unroll 8
  for (int k = 1; k < kAccumulators; ++k) seen[0] |= seen[k];
  uint64_t all = 0;
  for (size_t k = 0; k < sizeof(Wide) / sizeof(uint64_t); ++k) all |= seen[0][k];
  return all;
}

using Wide16 [[gnu::vector_size(16), gnu::may_alias]] = uint64_t;
using Wide32 [[gnu::vector_size(32), gnu::may_alias]] = uint64_t;
using Wide64 [[gnu::vector_size(64), gnu::may_alias]] = uint64_t;

using Reader = uint64_t (*)(const char*, int64_t);
uint64_t read16(const char* data, int64_t bytes) { return read_all<Wide16, 8>(data, bytes); }
#ifdef __x86_64__
[[gnu::target("avx2")]] uint64_t read32(const char* data, int64_t bytes) { return read_all<Wide32, 8>(data, bytes); }
[[gnu::target("avx512f")]] uint64_t read64(const char* data, int64_t bytes) { return read_all<Wide64, 4>(data, bytes); }
[[gnu::target("avx512f")]] uint64_t read64_by_8(const char* data, int64_t bytes) {
  return read_all<Wide64, 8>(data, bytes);
}
#endif

std::vector<Reader> readers() {
  std::vector<Reader> all = {read16};
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) all.push_back(read32);
  if (__builtin_cpu_supports("avx512f")) all.insert(all.end(), {read64, read64_by_8});
#endif
  return all;
}

// Seconds per call. The pointer passes through asm so that no call can be left out or hoisted.
template <typename Function>
double time_calls(const char* data, int64_t calls, Function&& function) {
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < calls; ++i) {
    asm volatile("" : "+r"(data) : : "memory");
    const uint64_t result = function(data);
    asm volatile("" : : "r"(result));
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / static_cast<double>(calls);
}

// One thing to be timed, and how long it took.
struct Contestant {
  std::function<double(int64_t bytes, int64_t calls)> time;
  std::vector<double> seconds;

  double best() const { return *std::min_element(seconds.begin(), seconds.end()); }
  double median() const {
    std::vector<double> sorted = seconds;
    std::nth_element(sorted.begin(), sorted.begin() + sorted.size() / 2, sorted.end());
    return sorted[sorted.size() / 2];
  }
};

Contestant scan_of(const char* data, c10::ScalarType dtype) {
  const FloatFormat format = *torchnan::float_format(dtype);
  return {[=](int64_t bytes, int64_t calls) {
            return time_calls(data, calls, [&](const char* p) {
              return torchnan::max_magnitude(p, bytes / format.word_bytes, format);
            });
          },
          {}};
}

Contestant read_by(const char* data, Reader reader) {
  return {[=](int64_t bytes, int64_t calls) {
            return time_calls(data, calls, [&](const char* p) { return reader(p, bytes); });
          },
          {}};
}

// Everybody runs once a round, so that what the machine does to a round it does to all; another one begins each time,
// as what one leaves in the cache is there for the next.
void race(std::vector<Contestant>& all, int64_t bytes, int rounds) {
  const int64_t calls = std::max<int64_t>(1, kBytesPerTiming / std::max<int64_t>(bytes, 1024));
  for (auto& contestant : all) contestant.seconds.clear();
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < all.size(); ++i) {
      Contestant& contestant = all[(i + round) % all.size()];
      contestant.seconds.push_back(contestant.time(bytes, calls));
    }
  }
}

double gigabytes_per_second(int64_t bytes, double seconds) { return static_cast<double>(bytes) / seconds * 1e-9; }

// One member per dtype, in the order of kDtypes.
using Members = std::vector<std::string>;

void add_level(Members& members, const Level& level, const std::vector<Contestant>& scans,
               const std::vector<Contestant>& reads) {
  double best = reads[0].best();
  double median = reads[0].median();
  for (const auto& read : reads) {
    best = std::min(best, read.best());
    median = std::min(median, read.median());
  }
  for (size_t i = 0; i < scans.size(); ++i) {
    char text[200];
    std::snprintf(text, sizeof(text),
                  "\"%s\": {\"scan\": %.1f, \"limit\": %.1f, \"ratio\": %.3f, \"ratio_of_medians\": %.3f}, ",
                  level.name, gigabytes_per_second(level.bytes, scans[i].best()),
                  gigabytes_per_second(level.bytes, best), best / scans[i].best(), median / scans[i].median());
    members[i] += text;
  }
}

void measure_level(Members& members, const Level& level, const char* data) {
  std::vector<Contestant> all;
  for (const auto& [name, dtype] : kDtypes) all.push_back(scan_of(data, dtype));
  for (const Reader reader : readers()) all.push_back(read_by(data, reader));
  race(all, level.bytes, level.rounds);
  const auto first_read = all.begin() + std::size(kDtypes);
  add_level(members, level, {all.begin(), first_read}, {first_read, all.end()});
}

void measure_small(Members& members, const char* data) {
  std::vector<Contestant> scans;
  for (const auto& [name, dtype] : kDtypes) scans.push_back(scan_of(data, dtype));
  for (auto& member : members) member += "\"ns\": {";
  for (const int64_t bytes : kSmallBytes) {
    race(scans, bytes, 60);
    for (size_t i = 0; i < scans.size(); ++i) {
      char text[50];
      std::snprintf(text, sizeof(text), "%s\"%ld\": %.1f", bytes == kSmallBytes[0] ? "" : ", ", long{bytes},
                    scans[i].best() * 1e9);
      members[i] += text;
    }
  }
  for (auto& member : members) member += "}";
}

void stay_on_this_core() {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(sched_getcpu(), &set);
  sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace

int main() {
  stay_on_this_core();
  const int64_t ram = std::max<int64_t>(256 << 20, 2 * sysconf(_SC_LEVEL3_CACHE_SIZE));
  const Level levels[] = {
      {"L1", 16 << 10, 60}, {"L2", 512 << 10, 60}, {"L3", 12 << 20, 60}, {"RAM", ram / 4096 * 4096, 15}};
  const std::unique_ptr<char, decltype(&std::free)> data(static_cast<char*>(std::aligned_alloc(4096, levels[3].bytes)),
                                                         &std::free);
  if (!data) return 1;
  std::memset(data.get(), 0x11, levels[3].bytes);  // finite in every format
  Members members(std::size(kDtypes));
  for (const Level& level : levels) measure_level(members, level, data.get());
  measure_small(members, data.get());
  std::printf("{\"bytes\": {");
  for (const Level& level : levels) {
    std::printf("%s\"%s\": %ld", &level == levels ? "" : ", ", level.name, long{level.bytes});
  }
  std::printf("},\n \"dtypes\": {");
  for (size_t i = 0; i < members.size(); ++i) {
    std::printf("%s\n  \"%s\": {%s}", i == 0 ? "" : ",", kDtypes[i].name, members[i].c_str());
  }
  std::printf("}}\n");
}
