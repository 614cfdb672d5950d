// Floating-point values that are moved as bytes: as integers that share their memory. Integers are not scanned, but
// what is known of the memory moves with them. FSDP2 gathers parameters of several dtypes in this way.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "check/bounds/operand.h"
#include "check/operators/op_plan.h"
#include "origin/nonfinite_registry.h"

namespace torchnan {

// Whether a tensor on the host may hold the bytes of floating-point values.
bool may_be_bytes(const at::Tensor& tensor);

// Records whether a collective has written integers of this process since the first session.
void set_has_received_bytes(bool has) noexcept;

// Whether a call may move bytes about which something is known.
bool may_move_bytes(const OpPlan& plan) noexcept;

// Records about a result that holds integers what is known of the bytes that were moved there.
void record_moved_bytes(const OpPlan& plan, c10::ArrayRef<Operand> arguments, const at::Tensor& result, int64_t output);

}  // namespace torchnan
