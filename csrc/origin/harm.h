// Decides where a non-finite value does harm or is seen, and reports its cause there, once.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

#include "detection/session.h"
#include "origin/attribution.h"
#include "origin/nonfinite_registry.h"

namespace torchnan {

// Returns the name of the harmed tensor; called only when there is something to report.
using HarmedName = std::function<std::string()>;

// Reports harm at the current location of the calling thread, unless its cause is harmless there or was reported
// before. Throws if the session's options demand it.
void report_harm(DetectionSession& session, const Provenance& provenance, HarmKind kind, NonfiniteKinds kinds,
                 const HarmedName& name = nullptr);

// Returns the finding of harm at `site` without delivering it; nothing if there is none to report.
std::optional<Finding> make_harm_finding(DetectionSession& session, const Provenance& provenance, HarmKind kind,
                                         NonfiniteKinds kinds, const Site& site, const HarmedName& name = nullptr);

// Whether user code inspects a gradient: after the backward pass, or in a hook, between the nodes. The id is that of
// the current execution of a backward node, 0 if there is none.
bool is_gradient(const Cause& cause, uint64_t node_execution_id = 0);

// Whether no harm that these values do is reported any more: the cause to report has been reported, or is exempt.
bool is_exhausted(const Provenance& provenance);

// Records that an operation reads values of this provenance, in this execution of a backward node, or 0.
void record_use(const Provenance& provenance, const OpPlan& plan, uint64_t node_execution_id = 0);

// Before a call runs: records that it uses its arguments, and reports those that it reads to the host.
void report_arguments(const CallContext& call, c10::ArrayRef<BadArgument> bad_arguments);

// Whether an operation made the values itself, and not on purpose.
bool is_new_accident(const Provenance& provenance);

// Whether the optimizer has written a result into a parameter. Other writers, like an initializer or a loader, may
// still clean it: then it is reported at its use, or at the end.
bool is_parameter_harmed(const Provenance& provenance, bool is_parameter, c10::function_ref<Site()> site,
                         const DetectionSession& session);

// After a call: reports its result if every origin is to be reported at once, or if it was written into a parameter.
void report_result(const CallContext& call, const Result& result, const NonfiniteRegistry::ProvenancePtr& provenance);

// After a call with bad results: reports the parameters that it used and that user code has made non-finite.
void report_weight_use(const CallContext& call, c10::ArrayRef<BadArgument> bad_arguments);

// Before the first operation of a backward pass, which runs in the node of one of its roots: reports the root if it is
// not finite.
void report_backward_start(DetectionSession& session);

// Returns the name of the parameter or buffer whose memory `tensor` is, empty if there is none.
std::string parameter_name(const DetectionSession& session, const at::Tensor& tensor);

// Returns the name of a parameter. If no module owns it, returns its shape in words, which begin with
// kNamelessParameter.
std::string parameter_name_or_shape(const DetectionSession& session, const at::Tensor& tensor);

}  // namespace torchnan
