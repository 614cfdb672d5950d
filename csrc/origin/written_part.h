// The part of a saved argument that its forward operator has written.
#pragma once

#include <ATen/core/Tensor.h>

#include "origin/arguments.h"
#include "check/scan/nonfinite_kinds.h"

namespace torchnan {

// Returns the kinds of non-finite values in the table of shape (N, T, 2 S + 1) that ctc_loss has saved for this call of
// its backward node. It has written only t < input length and s <= 2 target length of each of the N samples; the rest
// is uninitialized memory. Returns those of the whole table if the call does not show the lengths.
NonfiniteKinds kinds_in_written_part(const CallContext& call, const at::Tensor& table);

}  // namespace torchnan
