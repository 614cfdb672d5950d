#include "detection/headroom_table.h"

#include <algorithm>

#include "operators/op_plan.h"

namespace torchnan {
namespace {

// Of a key, from the lowest bit: dtype, grad mode, operator, call site.
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
  const auto found = std::find(kDtypes.begin(), kDtypes.end(), dtype);
  return found == kDtypes.end() ? 0 : static_cast<uint64_t>(found - kDtypes.begin()) + 1;
}

uint64_t HeadroomTable::key_of(const Maker& maker) noexcept {
  return uint64_t{maker.site} << kSiteAt | static_cast<uint64_t>(maker.op->index) << kOpAt |
         uint64_t{maker.grad_mode} << kGradModeAt | code_of(maker.dtype);
}

HeadroomTable::Maker HeadroomTable::maker_of(uint64_t key, const OpPlan* op) noexcept {
  const uint64_t code = key & ((uint64_t{1} << kGradModeAt) - 1);
  return {op, static_cast<SiteId>(key >> kSiteAt), kDtypes[code - 1], ((key >> kGradModeAt) & 1) != 0};
}

// Null if there is none left.
HeadroomTable::Place* HeadroomTable::place_of(const Maker& maker) noexcept {
  if (maker.op->index < 0) return nullptr;  // of thousands of custom operators the late ones
  const uint64_t key = key_of(maker);
  const uint64_t first = (key * 0x9e3779b97f4a7c15ull) >> 32;
  for (size_t i = 0; i < kLongestSearch; ++i) {
    Place& place = places_[(first + i) % kCapacity];
    uint64_t found = place.key.load(std::memory_order_relaxed);
    if (found == 0 && place.key.compare_exchange_strong(found, key, std::memory_order_relaxed)) {
      place.op.store(maker.op, std::memory_order_release);
      return &place;
    }
    if (found == key) return &place;
  }
  return nullptr;
}

void HeadroomTable::note(const Maker& maker, double max_abs, bool is_measured) noexcept {
  Place* const place = place_of(maker);
  if (place == nullptr) {
    missed_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  raise(is_measured ? place->measured : place->proved, max_abs);
}

std::vector<HeadroomTable::Entry> HeadroomTable::take() {
  std::vector<Entry> taken;
  for (size_t i = 0; i < kCapacity; ++i) {
    Place& place = places_[i];
    const OpPlan* const op = place.op.load(std::memory_order_acquire);
    if (op == nullptr) continue;  // free, or somebody is just moving in
    taken.emplace_back();         // first: what is taken out of the table is not lost
    taken.back().maker = maker_of(place.key.load(std::memory_order_relaxed), op);
    taken.back().measured = place.measured.exchange(kNone, std::memory_order_relaxed);
    taken.back().proved = place.proved.exchange(kNone, std::memory_order_relaxed);
    if (taken.back().measured == kNone && taken.back().proved == kNone) taken.pop_back();
  }
  return taken;
}

}  // namespace torchnan
