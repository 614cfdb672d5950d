// The arguments of a call, for attribution.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <torchnan/finding.h>

#include "check/scan/nonfinite_kinds.h"
#include "check/operators/op_plan.h"
#include "detection/session.h"

namespace torchnan {

// The facts about a call that attribution needs.
// Repeats a call without the non-finite values of some of its arguments.
class FiniteRun {
 public:
  virtual ~FiniteRun() = default;
  // Returns the results that the call has with a number in place of the non-finite values of these tensors; nothing if
  // it fails.
  virtual std::vector<at::Tensor> results_with(double number, c10::ArrayRef<at::Tensor> nonfinite) const = 0;
};

struct CallContext {
  const OpPlan& plan;
  c10::ArrayRef<c10::IValue> saved;  // the plan's saved_arguments, as they were passed
  DetectionSession& session;
  uint64_t thread;
  const FiniteRun* finite_run = nullptr;  // null if the call cannot be repeated
};

// A tensor argument, or one element of a list of them.
struct TensorArgument {
  at::Tensor tensor;
  std::string name;          // "self", "tensors[3]"
  bool overwritten = false;  // by this call, directly or through shared memory: its previous values are gone
  int64_t element = -1;      // index in a list
};

// Returns the tensors that the call reads, without out= arguments and numbers that PyTorch has wrapped.
std::vector<TensorArgument> tensor_arguments(const CallContext& call);

// Returns the destination of a call that moves values out of internal memory of PyTorch, as gloo's collectives do when
// they end; undefined if the call does more, or if Python knows the tensor `source`: then user code copies.
at::Tensor destination_of_internal_copy(const CallContext& call, const at::Tensor& source);

// Returns the kinds among the numbers that were passed, wrapped as tensors or not: full(-inf), x * inf,
// masked_fill(mask, -inf).
NonfiniteKinds kinds_of_numbers(const CallContext& call);

// Describes the inputs of result number `output` for the report: at most sixteen tensors, then the numbers.
std::vector<InputSummary> summarise_inputs(const CallContext& call, int64_t output);

// Whether a result depends on the argument at this index of a list, -1 for an argument outside of lists. Elementwise
// list operations depend only on the elements at the same index. `list_size` is that of list_size().
inline bool is_made_of(const OpPlan& plan, int64_t element, int64_t output, int64_t list_size) {
  return !plan.is_foreach_elementwise || element < 0 || element == output % list_size;
}

// Returns the length of the longest list among the arguments; 1 if there is none.
int64_t list_size(const CallContext& call);

// Whether it is a trained leaf, or a view of one. Without grad mode, as inside a node, every view looks like a leaf.
bool is_parameter(const at::Tensor& tensor);

// Returns Python's name of its dtype: "float32".
std::string dtype_name(const at::Tensor& tensor);

}  // namespace torchnan
