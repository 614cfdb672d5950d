// What a non-finite value does. Where it does damage or is seen, its cause is reported, once.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <torchnan/export.h>

#include "origin/attribution.h"
#include "origin/nonfinite_registry.h"
#include "detection/session.h"

namespace torchnan {

// Before a call runs: does it read a bad value back?
void report_before(const CallContext& call, c10::ArrayRef<BadArgument> bad_arguments);

// After a call: has it written into a parameter, or is every origin to be told at once?
void report_result(const CallContext& call, const Result& result, const NonfiniteRegistry::ProvenancePtr& record);

// After a call with bad results: has it used a weight that the program has made bad?
void judge_use(const CallContext& call, c10::ArrayRef<BadArgument> bad_arguments);

// The first operation of a backward pass is about to run, in the node of one of its roots: is the root finite?
void judge_beginning_of_backward(DetectionSession& session);

// backward() is called on `roots`: are they finite, whether or not anybody saw them being made? gradients[i], if given,
// is what the pass starts from: elements with a zero there play no part.
TORCHNAN_API void report_backward_roots(DetectionSession& session, c10::ArrayRef<at::Tensor> roots,
                                        c10::ArrayRef<at::Tensor> gradients);

// Reports what is remembered as non-finite among `tensors` as harm of this kind; name_of(i) names tensors[i] in the
// report. For gradients, optimizer state, values read by a host.
TORCHNAN_API void report_tensors(DetectionSession& session, HarmKind kind, c10::ArrayRef<at::Tensor> tensors,
                                 const std::function<std::string(size_t)>& name_of);

// What is to be told of harm that was done where `site` was, if it is not told already: of a record that was made
// since.
std::optional<Finding> report_harm(DetectionSession& session, const Provenance& record, HarmKind kind,
                                   NonfiniteKinds kinds, const Site& site, const std::string& name);

// A guard: `tensor` must be finite, whether or not anybody saw it being made.
void report_guard(DetectionSession& session, const at::Tensor& tensor, const std::string& name);

// When detection ends: what the program still holds is an error, what nobody ever used a warning. All are kept
// before the first error is acted upon.
TORCHNAN_API void report_at_end(DetectionSession& session);

}  // namespace torchnan
