// Hints by operator: the property of its arguments that makes its result non-finite.
#pragma once

#include "report/operation.h"

namespace torchnan {

// Returns the hint for the operator that made the value, empty if its rule does not fit the statistics.
Hint hint_for_operator(const Operation& op);

}  // namespace torchnan
