// The arguments of a call, for attribution.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <torchnan/finding.h>

#include "scan/nonfinite_kinds.h"
#include "operators/op_plan.h"
#include "detection/session.h"

namespace torchnan {

// A call, as far as attribution needs to know it.
struct CallContext {
  const OpPlan& plan;
  c10::ArrayRef<c10::IValue> kept;  // the plan's saved_arguments, as they were passed
  DetectionSession& session;
  uint64_t thread;
};

// A tensor argument, or one element of a list of them.
struct TensorArgument {
  at::Tensor tensor;
  std::string name;          // "self", "tensors[3]"
  bool overwritten = false;  // by this call: its previous values are gone
  int64_t element = -1;      // of a list
};

// Returns the tensors that the call reads, so no out= arguments.
std::vector<TensorArgument> tensor_arguments(const CallContext& call);

// Returns the tensor that a call which only moves values writes to; undefined if it does more than that.
at::Tensor copy_destination(const CallContext& call);

// Returns the kinds among the numbers that were passed: full(-inf), masked_fill(mask, -inf).
NonfiniteKinds kinds_of_numbers(const CallContext& call);

// Describes the inputs for the report, at most sixteen.
std::vector<InputSummary> summarise_inputs(const CallContext& call);

// Whether it is a leaf that is trained, or a view of one. Without grad mode, as inside a node, every view looks like a
// leaf.
bool is_parameter(const at::Tensor& tensor);

// Returns the name that Python has for it: "float32".
std::string dtype_name(const at::Tensor& tensor);

}  // namespace torchnan
