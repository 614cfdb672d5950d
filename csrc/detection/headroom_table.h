// The largest |x| of each call site since the table was last drained.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <c10/core/ScalarType.h>

#include <torchnan/export.h>

#include "host/host_runtime.h"

namespace torchnan {

struct OpPlan;

// A fixed table. Takes no lock and allocates nothing; what finds no room is counted. A place is never given to another
// call site, so nobody who writes can be told under a wrong one; sites are never used again either (site_table.h).
class TORCHNAN_API HeadroomTable {
 public:
  static constexpr size_t kCapacity = 1 << 14;

  struct Maker {
    const OpPlan* op = nullptr;
    SiteId site = 0;
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    bool grad_mode = false;
  };
  struct Entry {
    Maker maker;
    double measured = kNone;  // the largest that was read
    double proved = kNone;    // the largest bound of what was not
  };
  static constexpr double kNone = -1;

  // Whether it records results of this dtype.
  static bool knows(c10::ScalarType dtype) noexcept { return code_of(dtype) != 0; }

  // `maker` has made something within `most`, which is the largest |x| in it if it `is_measured`.
  void note(const Maker& maker, double max_abs, bool is_measured) noexcept;

  // Returns what has been recorded since the last time, and forgets it.
  std::vector<Entry> take();

  // Returns how many results found no room.
  int64_t missed() const noexcept { return missed_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kLongestSearch = 16;
  static constexpr std::array kDtypes = {c10::ScalarType::Half, c10::ScalarType::BFloat16, c10::ScalarType::Float};

  struct Place {
    std::atomic<uint64_t> key{0};  // 0: free
    std::atomic<const OpPlan*> op{nullptr};
    std::atomic<double> measured{kNone};
    std::atomic<double> proved{kNone};
  };

  // From 1; 0 for the others.
  static uint64_t code_of(c10::ScalarType dtype) noexcept;
  static uint64_t key_of(const Maker& maker) noexcept;
  static Maker maker_of(uint64_t key, const OpPlan* op) noexcept;
  Place* place_of(const Maker& maker) noexcept;

  std::unique_ptr<Place[]> places_{new Place[kCapacity]};
  std::atomic<int64_t> missed_{0};
};

}  // namespace torchnan
