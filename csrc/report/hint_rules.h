// The rules for hints, by the operation that made the value.
#pragma once

#include <string>

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

// Returns "; mat2 has grown from 0.3 at step 1" for the first weight that has grown, for the end of a hint that tells
// of a value too large; empty if none has.
std::string describe_growth(const Operation& op);

}  // namespace torchnan
