// Hints for results of finite arguments that do not fit into their dtype.
#pragma once

#include "report/operation.h"

namespace torchnan {

// Returns the hint of an operation that has left the range of its dtype, empty where something else may have made the
// value.
Hint hint_for_overflow(const Operation& op);

}  // namespace torchnan
