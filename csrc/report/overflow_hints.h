// Hints for results of finite arguments that do not fit into their dtype.
#pragma once

#include "report/operation.h"

namespace torchnan {

// Returns the hint for an operation that overflowed its dtype, empty if something else may have made the value.
Hint hint_for_overflow(const Operation& op);

}  // namespace torchnan
