// Handles a scan that contradicts a bound: the safety net below the rules.
#pragma once

#include <c10/util/ArrayRef.h>

#include "check/bounds/operand.h"
#include "detection/session.h"
#include "intercept/host_results.h"
#include "check/operators/op_plan.h"

namespace torchnan {

// Withdraws the rule that gave the bound, forgets all bounds, because others build on it, and asks the user to report
// it. If an argument exceeds its own bound, the rule is not to blame: its memory was written by other means, and the
// bound is dropped. `arguments`: the tensors of the call.
void report_disproof(DetectionSession& session, const OpPlan& plan, c10::ArrayRef<Operand> arguments,
                     const HostResults::Disproof& disproof) noexcept;

}  // namespace torchnan
