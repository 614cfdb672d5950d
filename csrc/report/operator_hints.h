// Hints by operator: what its arguments hold that makes its result non-finite.
#pragma once

#include <torchnan/finding.h>

#include "report/hint.h"

namespace torchnan {

// Returns the hint of the operator that made the value, empty if its rule does not fit what was measured.
Hint hint_for_operator(const Finding& finding);

}  // namespace torchnan
