#include "detection/headroom_table.h"

#include <algorithm>

#include "check/operators/op_plan.h"

namespace torchnan {
namespace {

// The fields of a key, from the lowest bit: dtype, grad mode, operator, call site.
constexpr int kGradModeAt = 2;
constexpr int kOpAt = 3;
constexpr int kSiteAt = 32;
static_assert(OpPlan::kMaxPlans <= uint64_t{1} << (kSiteAt - kOpAt));

void raise(std::atomic<double>& largest, double max_abs) noexcept {
  double seen = largest.load(std::memory_order_relaxed);
  while (max_abs > seen && !largest.compare_exchange_weak(seen, max_abs, std::memory_order_relaxed)) {
  }
}

}  // namespace

uint64_t HeadroomTable::code_of(c10::ScalarType dtype) noexcept {
  static_assert(kDtypes.size() < 1 << kGradModeAt);
  const auto found = std::find(kDtypes.begin(), kDtypes.end(), dtype);
  return found == kDtypes.end() ? 0 : static_cast<uint64_t>(found - kDtypes.begin()) + 1;
}

uint64_t HeadroomTable::key_of(const Producer& producer) noexcept {
  return uint64_t{producer.site} << kSiteAt | static_cast<uint64_t>(producer.op->index) << kOpAt |
         uint64_t{producer.grad_mode} << kGradModeAt | code_of(producer.dtype);
}

HeadroomTable::Producer HeadroomTable::producer_of(uint64_t key, const OpPlan* op) noexcept {
  const uint64_t code = key & ((uint64_t{1} << kGradModeAt) - 1);
  return {op, static_cast<SiteId>(key >> kSiteAt), kDtypes[code - 1], ((key >> kGradModeAt) & 1) != 0};
}

// Null if the table is full.
HeadroomTable::Slot* HeadroomTable::find_slot(const Producer& producer) noexcept {
  if (producer.op->index < 0) return nullptr;  // one of the last of thousands of custom operators
  const uint64_t key = key_of(producer);
  const uint64_t first = (key * 0x9e3779b97f4a7c15ull) >> 32;
  for (size_t i = 0; i < kMaxProbes; ++i) {
    Slot& slot = slots_[(first + i) % kCapacity];
    uint64_t found = slot.key.load(std::memory_order_relaxed);
    if (found == 0 && slot.key.compare_exchange_strong(found, key, std::memory_order_relaxed)) {
      slot.op.store(producer.op, std::memory_order_release);
      return &slot;
    }
    if (found == key) return &slot;
  }
  return nullptr;
}

void HeadroomTable::record(const Producer& producer, double max_abs, bool is_measured) noexcept {
  Slot* const slot = find_slot(producer);
  if (slot == nullptr) {
    dropped_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  raise(is_measured ? slot->measured : slot->proved, max_abs);
}

std::vector<HeadroomTable::Entry> HeadroomTable::drain() {
  std::vector<Entry> drained;
  for (size_t i = 0; i < kCapacity; ++i) {
    Slot& slot = slots_[i];
    const OpPlan* const op = slot.op.load(std::memory_order_acquire);
    if (op == nullptr) continue;  // free, or being claimed by a writer
    drained.emplace_back();       // reserve space first, so that no drained entry is lost
    drained.back().producer = producer_of(slot.key.load(std::memory_order_relaxed), op);
    drained.back().measured = slot.measured.exchange(kNone, std::memory_order_relaxed);
    drained.back().proved = slot.proved.exchange(kNone, std::memory_order_relaxed);
    if (drained.back().measured == kNone && drained.back().proved == kNone) drained.pop_back();
  }
  return drained;
}

}  // namespace torchnan
