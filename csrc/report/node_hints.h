// Hints by backward node: where the slope of a function is infinite.
#pragma once

#include "report/operation.h"

namespace torchnan {

// Returns the hint for an operation in a backward node, empty unless an argument holds the value at which the slope is
// infinite.
Hint hint_for_node(const Operation& op);

}  // namespace torchnan
