// For an elementwise operation the question who made a bad value has an answer at every element.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace torchnan {

struct Suspect {
  at::Tensor tensor;  // an argument, broadcastable to the result
  bool by_accident;   // what is bad in it is not there on purpose
};

struct Blame {
  // Some element of the result is bad by this operation: every argument is finite there, or a NaN was made there of
  // an Inf that is on purpose.
  bool own = false;
  // For each argument: it was bad at some bad element of the result, and that is why.
  std::vector<bool> inherited;
};

// Dense, readable CPU tensors; arguments that do not broadcast to the result are left out of account.
Blame blame(const at::Tensor& result, c10::ArrayRef<Suspect> arguments);

}  // namespace torchnan
