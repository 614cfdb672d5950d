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

#include "base/runtime.h"

namespace torchnan {

struct OpPlan;

// A fixed table. Takes no lock and allocates nothing; results without a free slot are counted. A slot is never reused
// for another call site, so a writer is never reported under a wrong one. Ids of call sites are never reused either.
class TORCHNAN_API HeadroomTable {
 public:
  static constexpr size_t kCapacity = 1 << 14;

  struct Producer {
    const OpPlan* op = nullptr;
    SiteId site = 0;
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    bool grad_mode = false;
  };
  struct Entry {
    Producer producer;
    double measured = kNone;  // the largest scanned value
    double proved = kNone;    // the largest bound of results that were not scanned
  };
  static constexpr double kNone = -1;

  // Whether it records results of this dtype.
  static bool covers(c10::ScalarType dtype) noexcept { return code_of(dtype) != 0; }

  // Records that no |x| of a result of `producer` exceeds `max_abs`; if `is_measured`, one element has that value.
  void record(const Producer& producer, double max_abs, bool is_measured) noexcept;

  // Returns the entries since the last call, and clears them.
  std::vector<Entry> drain();

  // Returns the number of results without a free slot.
  int64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }

 private:
  static constexpr size_t kMaxProbes = 16;
  static constexpr std::array kDtypes = {c10::ScalarType::Half, c10::ScalarType::BFloat16, c10::ScalarType::Float};

  struct Slot {
    std::atomic<uint64_t> key{0};  // 0: free
    std::atomic<const OpPlan*> op{nullptr};
    std::atomic<double> measured{kNone};
    std::atomic<double> proved{kNone};
  };

  // From 1; 0 for the others.
  static uint64_t code_of(c10::ScalarType dtype) noexcept;
  static uint64_t key_of(const Producer& producer) noexcept;
  static Producer producer_of(uint64_t key, const OpPlan* op) noexcept;
  Slot* find_slot(const Producer& producer) noexcept;

  std::unique_ptr<Slot[]> slots_{new Slot[kCapacity]};
  std::atomic<int64_t> dropped_{0};
};

}  // namespace torchnan
