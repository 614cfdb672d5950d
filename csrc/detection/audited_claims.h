// Which proofs are tested: the safety net below the bound rules.
//
// Each result that is proved finite has its turn to be scanned as well, once in N steps. Some proofs do not wait for
// their turn, because least is known about them: for each operator, the first in this process that is so close to the
// limit of its dtype. Such a result misses its next turn, so the net reads as many bytes, and no other result waits.
#pragma once

#include <cstdint>

#include <torchnan/export.h>

namespace torchnan {

// A proof that a result is finite, which is due in its turn or not.
struct FinitenessClaim {
  int operator_index = -1;  // OpPlan::index
  double max_abs = 0;       // bound of the result and of the intermediates
  double limit = 0;         // of the dtype
  int64_t place = 0;        // of the result among those of its step
  bool has_turn = false;
  bool is_in_first_step = false;  // where no turn is missed
};

// How many distances from the limit are told apart, in steps of 16 binary orders of magnitude.
inline constexpr int kDistancesFromLimit = 4;

// Whether a proof without a turn may be tested. Most are far from the limit.
inline bool is_near_limit(double max_abs, double limit) {
  constexpr double kFarthest = 0x1p64;  // 16 * kDistancesFromLimit
  return max_abs * kFarthest > limit;
}

// Returns whether a proof that has its turn or is near the limit is to be tested, and counts it as tested if so.
TORCHNAN_API bool choose_for_audit(const FinitenessClaim& claim) noexcept;

// Forgets which kinds were tested, for tests.
TORCHNAN_API void forget_audited_claims() noexcept;

}  // namespace torchnan
