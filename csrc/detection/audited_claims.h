// Which proofs are tested: the safety net below the bound rules.
//
// Each result that is proved finite has its turn to be scanned as well, once in N steps. Some proofs do not wait for
// their turn, because least is known about them: for each operator, the first in this process that is so close to the
// limit of its dtype. Their bytes are made up for by turns that proofs of known kinds miss.
#pragma once

#include <cstdint>

#include <torchnan/export.h>

namespace torchnan {

// A proof that a result is finite, which is due in its turn or not.
struct FinitenessClaim {
  int operator_index = -1;  // OpPlan::index
  double max_abs = 0;       // bound of the result and of the intermediates
  double limit = 0;         // of the dtype
  int64_t bytes = 0;        // of the result
  bool has_turn = false;
  bool is_in_first_step = false;  // where no turn is missed
};

// Returns whether a proof is to be tested, and counts it as tested if so.
TORCHNAN_API bool choose_for_audit(const FinitenessClaim& claim) noexcept;

// Forgets which kinds were tested, for tests.
TORCHNAN_API void forget_audited_claims() noexcept;

}  // namespace torchnan
