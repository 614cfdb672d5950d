#include "detection/audited_claims.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include "check/operators/op_plan.h"

namespace torchnan {
namespace {

// Whether a proof of each kind was tested.
std::array<std::array<std::atomic<bool>, kDistancesFromLimit>, OpPlan::kMaxPlans> tested;

// The places of the results that were tested without a turn, and have not missed one for it; -1 for none. When it is
// full, the oldest keeps its turn.
class OwedTurns {
 public:
  OwedTurns() { clear(); }
  void clear() { places_.fill(-1); }
  void add(int64_t place) { places_[next_++ % places_.size()] = place; }
  bool take(int64_t place) {
    const auto found = std::find(places_.begin(), places_.end(), place);
    if (found == places_.end()) return false;
    *found = -1;
    return true;
  }

 private:
  std::array<int64_t, 64> places_{};
  size_t next_ = 0;
};

thread_local OwedTurns owed_turns;

int exponent_of(double x) { return static_cast<int>(std::bit_cast<uint64_t>(x) >> 52); }

// kDistancesFromLimit and more: far from the limit.
int distance_of(const FinitenessClaim& claim) {
  return std::max((exponent_of(claim.limit) - exponent_of(claim.max_abs)) / 16, 0);
}

// Whether none of its kind was tested before. Counts it as tested.
bool is_first_of_its_kind(const FinitenessClaim& claim) {
  const int distance = distance_of(claim);
  if (distance >= kDistancesFromLimit || claim.operator_index < 0) return false;
  std::atomic<bool>& is_known = tested[static_cast<size_t>(claim.operator_index)][static_cast<size_t>(distance)];
  return !is_known.load(std::memory_order_relaxed) && !is_known.exchange(true, std::memory_order_relaxed);
}

}  // namespace

bool choose_for_audit(const FinitenessClaim& claim) noexcept {
  if (claim.is_in_first_step) owed_turns.clear();
  if (claim.has_turn && owed_turns.take(claim.place)) return false;
  const bool is_first = is_first_of_its_kind(claim);
  if (is_first && !claim.has_turn) owed_turns.add(claim.place);
  return is_first || claim.has_turn;
}

void forget_audited_claims() noexcept {
  for (auto& of_operator : tested) {
    for (std::atomic<bool>& is_known : of_operator) is_known.store(false, std::memory_order_relaxed);
  }
  owed_turns.clear();
}

}  // namespace torchnan
