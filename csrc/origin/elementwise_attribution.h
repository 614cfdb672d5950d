// For an elementwise operation the question who made a bad value has an answer at every element.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "scan/nonfinite_kinds.h"

namespace torchnan {

// The kinds of a tensor's elements in their logical order, kept for when it is overwritten.
using ElementKinds = std::vector<NonfiniteKinds>;
std::shared_ptr<const ElementKinds> kinds_by_element(const at::Tensor& tensor);

struct Candidate {
  at::Tensor tensor;                           // an argument, broadcastable to the result
  std::shared_ptr<const ElementKinds> before;  // what it held, if the operation has written over it
  bool by_accident;                            // what is bad in it is not there on purpose
};

struct ElementAttribution {
  // Among the elements that are bad by this operation: every argument is finite there, or a NaN was made there of an
  // Inf that is on purpose.
  NonfiniteKinds own;
  // For each argument: among the elements where it was bad and that is why.
  std::vector<NonfiniteKinds> inherited;
};

// Dense, readable CPU tensors; arguments that do not broadcast to the result are left out of account.
ElementAttribution attribute_by_element(const at::Tensor& result, c10::ArrayRef<Candidate> arguments);

// The kinds in `tensor` where `weight`, of the same shape, is not zero.
NonfiniteKinds kinds_where_nonzero(const at::Tensor& tensor, const at::Tensor& weight);

}  // namespace torchnan
