// The safety net below the bound rules: a rule that a scan contradicts is not used again.
#pragma once

#include <string_view>

#include "detection/session.h"
#include "check/operators/op_plan.h"

namespace torchnan {

// Withdraws the rule of an operator for the rest of the process, and asks the user to report it. `facts`: the claimed
// and the found bound, without any data. Does nothing if the rule was withdrawn before.
void withdraw_rule(const DetectionSession& session, const OpPlan& plan, std::string_view facts);

}  // namespace torchnan
