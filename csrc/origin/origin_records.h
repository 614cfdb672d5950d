// Makes origin records, with all that the report needs while it can still be found out.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "scan/nonfinite_kinds.h"
#include "origin/arguments.h"
#include "origin/nonfinite_registry.h"
#include "origin/replayed_region.h"
#include "scan/tensor_scan.h"

namespace torchnan {

// Makes a record with what every origin has; the caller adds what it knows of the values.
std::shared_ptr<OriginRecord> new_origin_record(OriginRecord::Source source, const OpPlan& plan, Site site,
                                                DetectionSession& session);

// The formula of PyTorch's own node is often gradient times slope. A slope that is infinite where the gradient is zero
// makes a NaN of it, and that is what the node makes: the slope is no gradient yet. `kinds` are those of a result of
// `plan` in this run of a node. What user code runs in a node is its own: there an Inf is an Inf.
void mark_factor(OriginRecord& origin, uint64_t node_execution_id, const OpPlan& plan, NonfiniteKinds kinds);

// Returns the one of several kinds that is reported.
Kind dominant_kind(NonfiniteKinds kinds);

// Records that the call has made values of these kinds in `result`, which is output number `output`.
std::shared_ptr<OriginRecord> operation_origin(const CallContext& call, const at::Tensor& result, int64_t output,
                                               NonfiniteKinds kinds);

// Records that the call is a collective whose sum may leave the range. What it turns out to be is added later.
std::shared_ptr<OriginRecord> sum_origin(const CallContext& call, const at::Tensor& sent);

// Describes the values of a tensor.
void fill_tensor_stats(const at::Tensor& tensor, const TensorStats& stats, Finding& facts);

// Records that the call has written, or is about to use, a non-finite number of user code.
std::shared_ptr<OriginRecord> constant_origin(const CallContext& call, const at::Tensor& result);

// Returns the one origin of what this step of an optimizer makes with numbers that are not finite: a learning rate, a
// weight decay.
std::shared_ptr<OriginRecord> one_origin_of_step(const DetectionSession& session, std::shared_ptr<OriginRecord> origin);

// Records that the forward operation `op` has made what is in `argument`, which it saved for this call of its backward
// node.
std::shared_ptr<OriginRecord> saved_argument_origin(const CallContext& call, const at::Tensor& argument,
                                                    NonfiniteKinds kinds, std::string_view op);

// Records that nobody was seen making what is in `argument`, and that this call is its first reader.
std::shared_ptr<OriginRecord> external_origin(const CallContext& call, const at::Tensor& argument,
                                              NonfiniteKinds kinds);

// Records that another process has made values of these kinds, which came here in `tensor`. `facts` are those that it
// found; without an operation, if it has seen none that did more than move them: then the first one here does.
std::shared_ptr<OriginRecord> received_origin(const at::Tensor& tensor, OriginRecord::Source source,
                                              NonfiniteKinds kinds, Finding facts, DetectionSession& session);

// Records that the values came out of a compiled region that could not be followed, as its result number `output`.
std::shared_ptr<OriginRecord> border_origin(const CallContext& call, const at::Tensor& result, int64_t output,
                                            NonfiniteKinds kinds, const ReplayedRegion& region);

// Returns a record of the same cause in a later call of a compiled region, whose numbers are not known. `is_checked`:
// the calls were compared.
std::shared_ptr<OriginRecord> repeated_origin(const OriginRecord& earlier, DetectionSession& session, bool is_checked);

// Whether it was made before this process was forked off another. Harm that it does here is reported here; that it is
// left over is for the parent to report.
bool is_inherited(const OriginRecord& origin);

// Returns the module parameter or buffer whose memory `tensor` is: of the session's model, of a module on this thread's
// stack, or else, if `search_all_modules`, of any.
std::optional<Owner> owner_of(const at::Tensor& tensor, bool search_all_modules, const DetectionSession& session);
// The same by its storage, as used at `use`.
std::optional<Owner> owner_of(const c10::StorageImpl* storage, SiteId use, bool search_all_modules,
                              const DetectionSession& session);

// Whether a backward pass made it in a step that a loss scaler has skipped.
bool is_of_skipped_step(const DetectionSession& session, const OriginRecord& origin);

// Whether the values were only put into memory, by copy_() or fill_().
bool is_constant_write(const Provenance& provenance);

// Returns the provenance of a bad argument, and remembers a new external origin if there is none. What is intentional
// elsewhere is an accident in a weight.
NonfiniteRegistry::ProvenancePtr provenance_of_argument(const CallContext& call, const at::Tensor& argument,
                                                        NonfiniteKinds kinds);

// Records an operation that may be the first to compute with values that no operation made, or to read them as a
// module's own.
void record_first_use(OriginRecord& origin, const OpPlan& plan, const Site& site, const DetectionSession& session,
                      c10::function_ref<std::optional<Owner>()> owner_of_argument);

}  // namespace torchnan
