// Attributes elementwise operations element by element.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "check/scan/nonfinite_kinds.h"

namespace torchnan {

// The kinds of a tensor's elements in their logical order, saved before it is overwritten.
using ElementKinds = std::vector<NonfiniteKinds>;
std::shared_ptr<const ElementKinds> kinds_by_element(const at::Tensor& tensor);

struct Candidate {
  at::Tensor tensor;                           // an argument, broadcastable to the result
  std::shared_ptr<const ElementKinds> before;  // its previous kinds, if the operation has overwritten it
  bool by_accident;                            // whether its bad values are unintentional
};

struct ElementAttribution {
  // The kinds of elements that the operation itself made: every argument is finite there, or an intentional Inf became
  // a NaN there.
  NonfiniteKinds own;
  // For each argument: the kinds of elements that are bad because the argument is bad there.
  std::vector<NonfiniteKinds> inherited;
};

// For dense, readable CPU tensors; ignores arguments that do not broadcast to the result.
ElementAttribution attribute_by_element(const at::Tensor& result, c10::ArrayRef<Candidate> arguments);

// The kinds in `tensor` where `weight`, of the same shape, is not zero.
NonfiniteKinds kinds_where_nonzero(const at::Tensor& tensor, const at::Tensor& weight);

}  // namespace torchnan
