#include "detection/audited_claims.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include "operators/op_plan.h"

namespace torchnan {
namespace {

// From the limit of a dtype, in steps of 16 binary orders of magnitude.
constexpr int kDistances = 4;
constexpr uint8_t kWellKnown = 2;  // proofs of a kind that were tested

// How many proofs of each kind were tested, up to kWellKnown.
std::array<std::array<std::atomic<uint8_t>, kDistances>, OpPlan::kMaxPlans> tested;

thread_local int64_t owed_bytes = 0;  // scanned without a turn

int exponent_of(double x) { return static_cast<int>(std::bit_cast<uint64_t>(x) >> 52); }

// kDistances and more: far from the limit, as most proofs are.
int distance_of(const FinitenessClaim& claim) {
  return std::max((exponent_of(claim.limit) - exponent_of(claim.max_abs)) / 16, 0);
}

// Counts a proof that is near the limit. Returns how many of its kind were tested before.
uint8_t count_tested(const FinitenessClaim& claim, int distance) {
  std::atomic<uint8_t>& count = tested[static_cast<size_t>(claim.operator_index)][static_cast<size_t>(distance)];
  const uint8_t before = count.load(std::memory_order_relaxed);
  if (before < kWellKnown && (before == 0 || claim.has_turn)) count.store(before + 1, std::memory_order_relaxed);
  return before;
}

}  // namespace

bool choose_for_audit(const FinitenessClaim& claim) noexcept {
  if (claim.is_in_first_step) owed_bytes = 0;
  const int distance = distance_of(claim);
  const bool is_counted = distance < kDistances && claim.operator_index >= 0;
  const uint8_t before = is_counted ? count_tested(claim, distance) : kWellKnown;
  if (!claim.has_turn) {
    if (before == 0) owed_bytes += claim.bytes;
    return before == 0;
  }
  if (before < kWellKnown || owed_bytes <= 0) return true;
  owed_bytes -= claim.bytes;
  return false;
}

void forget_audited_claims() noexcept {
  for (auto& of_operator : tested) {
    for (std::atomic<uint8_t>& count : of_operator) count.store(0, std::memory_order_relaxed);
  }
}

}  // namespace torchnan
