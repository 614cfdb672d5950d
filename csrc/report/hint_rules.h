// The rules for hints, by the operation that made the value.
#pragma once

#include "report/operation.h"

namespace torchnan {

// Returns the hint for an operation in a backward node, empty unless an argument holds the value at which the slope of
// the function is infinite.
Hint hint_for_node(const Operation& op);

// Returns the hint for the operator that made the value, from the property of its arguments that makes its result
// non-finite; empty if its rule does not fit the statistics.
Hint hint_for_operator(const Operation& op);

// Returns the hint for an operation on finite arguments whose result does not fit into its dtype, empty if something
// else may have made the value.
Hint hint_for_overflow(const Operation& op);

}  // namespace torchnan
