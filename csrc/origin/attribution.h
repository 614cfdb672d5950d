// Attributes the non-finite results of a call on the host: to the call itself, or to its arguments.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include "origin/elementwise_attribution.h"
#include "scan/nonfinite_kinds.h"
#include "origin/arguments.h"
#include "origin/nonfinite_registry.h"

namespace torchnan {

// A non-finite tensor argument.
struct BadArgument {
  at::Tensor tensor;
  std::string name;
  int64_t element;  // index in a list; -1 outside of lists
  NonfiniteKinds kinds;
  NonfiniteRegistry::ProvenancePtr provenance;
  bool overwritten = false;                      // by the call
  int64_t count = 0;                             // of bad words on purpose, for an elementwise operation
  std::shared_ptr<const ElementKinds> before{};  // what such an operation has overwritten
};

// Returns what attribution has to know of an argument; before the call, if the call overwrites it.
BadArgument bad_argument(const CallContext& call, const at::Tensor& tensor, std::string_view name, int64_t element,
                         NonfiniteKinds kinds, bool overwritten);

// A non-finite tensor that a call has written.
struct Result {
  at::Tensor tensor;
  NonfiniteKinds kinds;
  int64_t output = 0;                            // which of the tensors it wrote, lists counted through
  NonfiniteRegistry::ProvenancePtr inherited{};  // if all that it is made of is exhausted: then nothing else is asked
};

// Returns what a result inherits if everything non-finite that it is made of is exhausted; null if something is not.
NonfiniteRegistry::ProvenancePtr exhausted_provenance(const CallContext& call, c10::ArrayRef<BadArgument> bad_arguments,
                                                      int64_t output);

// Finds the cause of each result, remembers it in the registry, and reports the harm that the call itself has done.
// `bad_arguments` has those that were known before the call; adds the others.
void attribute(const CallContext& call, c10::SmallVectorImpl<BadArgument>& bad_arguments,
               c10::ArrayRef<Result> results);

// Records a result that is not scanned as being as bad as the arguments: it is behind a mask, or, if `is_pending`, a
// collective that the call has started will write it.
void propagate_unscanned(const CallContext& call, c10::ArrayRef<BadArgument> bad_arguments, const at::Tensor& result,
                         bool is_pending);

}  // namespace torchnan
