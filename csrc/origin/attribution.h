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
#include "check/scan/nonfinite_kinds.h"
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

// Returns the facts about an argument that attribution needs. An argument that the call overwrites is read before it.
BadArgument bad_argument(const CallContext& call, const at::Tensor& tensor, std::string_view name, int64_t element,
                         NonfiniteKinds kinds, bool overwritten);

// A non-finite tensor that a call has written.
struct Result {
  at::Tensor tensor;
  NonfiniteKinds kinds;
  int64_t output = 0;                            // index among the written tensors, including those in lists
  NonfiniteRegistry::ProvenancePtr inherited{};  // from exhausted arguments; null if a cause must be searched for
};

// Returns the provenance that a result inherits if all bad arguments that it depends on are exhausted; null otherwise.
NonfiniteRegistry::ProvenancePtr exhausted_provenance(const CallContext& call, c10::ArrayRef<BadArgument> bad_arguments,
                                                      int64_t output);

// Finds the cause of each result, records it in the registry, and reports the harm that the call itself has done.
// Appends the bad arguments that were not already known before the call to `bad_arguments`.
void attribute(const CallContext& call, c10::SmallVectorImpl<BadArgument>& bad_arguments,
               c10::ArrayRef<Result> results);

// Records a result that is not scanned as being as bad as the arguments: it is behind a mask, or, if `is_pending`, a
// collective that the call has started will write it.
void propagate_unscanned(const CallContext& call, c10::ArrayRef<BadArgument> bad_arguments, const at::Tensor& result,
                         bool is_pending);

}  // namespace torchnan
