// Hints by operator: what its arguments hold that makes its result non-finite.
#pragma once

#include "report/operation.h"

namespace torchnan {

// Returns the hint of the operator that made the value, empty if its rule does not fit what was measured.
Hint hint_for_operator(const Operation& op);

}  // namespace torchnan
