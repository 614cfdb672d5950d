// Makes origin records, with everything that the report needs, while it can still be determined.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "check/scan/nonfinite_kinds.h"
#include "origin/arguments.h"
#include "origin/nonfinite_registry.h"
#include "origin/replayed_region.h"
#include "check/scan/tensor_scan.h"

namespace torchnan {

// Makes a record with the common facts of every origin; the caller adds those about the values.
std::shared_ptr<OriginRecord> new_origin_record(OriginRecord::Source source, const OpPlan& plan, Site site,
                                                DetectionSession& session);

// The formula of PyTorch's own node is often gradient times slope. If the slope is infinite where the gradient is zero,
// the product is NaN, and that NaN is the result of the node: the slope is not a gradient yet. `kinds` are those of a
// result of `plan` in this run of a node. User code that runs in a node is not such a formula: there an Inf is an Inf.
void mark_factor(OriginRecord& origin, uint64_t node_execution_id, const OpPlan& plan, NonfiniteKinds kinds);

// Returns which of several kinds is reported.
Kind dominant_kind(NonfiniteKinds kinds);

// Records that the call has made values of these kinds in `result`, which is output number `output`.
std::shared_ptr<OriginRecord> operation_origin(const CallContext& call, const at::Tensor& result, int64_t output,
                                               NonfiniteKinds kinds);

// Records that the call is a collective whose sum or product may overflow. The values of the result are added later.
std::shared_ptr<OriginRecord> reduction_origin(const CallContext& call, const at::Tensor& sent);

// Describes the values of a tensor.
void fill_tensor_stats(const at::Tensor& tensor, const TensorStats& stats, Finding& facts);

// Records that the call has written, or is about to use, a non-finite number of user code.
std::shared_ptr<OriginRecord> constant_origin(const CallContext& call, const at::Tensor& result);

// Returns the common origin of all values that this optimizer step makes with non-finite numbers: a learning rate, a
// weight decay.
std::shared_ptr<OriginRecord> one_origin_of_step(const DetectionSession& session, std::shared_ptr<OriginRecord> origin);

// Records that the forward operation `op` has made the values of `argument`, which it saved for this call of its
// backward node.
std::shared_ptr<OriginRecord> saved_argument_origin(const CallContext& call, const at::Tensor& argument,
                                                    NonfiniteKinds kinds, std::string_view op);

// Records that the origin of the values in `argument` was not observed, and that this call is its first reader.
std::shared_ptr<OriginRecord> external_origin(const CallContext& call, const at::Tensor& argument,
                                              NonfiniteKinds kinds);

// Records that another process has made values of these kinds, which arrived here in `tensor`. `facts` are the findings
// of that process. If it saw no operation that did more than move the values, they have no operation; the first such
// operation here is recorded then.
std::shared_ptr<OriginRecord> received_origin(const at::Tensor& tensor, OriginRecord::Source source,
                                              NonfiniteKinds kinds, Finding facts, DetectionSession& session);

// Records that the values came out of a compiled region that could not be followed, as its result number `output`.
std::shared_ptr<OriginRecord> border_origin(const CallContext& call, const at::Tensor& result, int64_t output,
                                            NonfiniteKinds kinds, const ReplayedRegion& region);

// Returns a record of the same cause in a later call of a compiled region, whose numbers are not known. `is_checked`:
// the calls were compared.
std::shared_ptr<OriginRecord> repeated_origin(const OriginRecord& earlier, DetectionSession& session, bool is_checked);

// Returns the number that the next origin of this process gets.
uint64_t next_origin_sequence();

// Whether it was made before this process was forked. Harm that it does here is reported here; if it is left over at
// the end, the parent reports it.
bool is_inherited(const OriginRecord& origin);

// Returns the module parameter or buffer whose memory `tensor` is: of the session's model, of a module on this thread's
// stack, or else, if `search_all_modules`, of any.
std::optional<Owner> owner_of(const at::Tensor& tensor, bool search_all_modules, const DetectionSession& session);
// The same by its memory, as used at `use`.
std::optional<Owner> owner_of(const StorageSpan& memory, SiteId use, bool search_all_modules,
                              const DetectionSession& session);

// Whether a backward pass made it in a step that a loss scaler has skipped.
bool is_of_skipped_step(const DetectionSession& session, const OriginRecord& origin);

// Whether the values were only put into memory, by copy_() or fill_().
bool is_constant_write(const Provenance& provenance);

// Returns the provenance of a bad argument, and records a new external origin if there is none. A value that is
// intentional elsewhere is an accident in a weight.
NonfiniteRegistry::ProvenancePtr provenance_of_argument(const CallContext& call, const at::Tensor& argument,
                                                        NonfiniteKinds kinds);

// Records an operation that may be the first to compute with values that no operation made, or to read them as a
// parameter or buffer.
void record_first_use(OriginRecord& origin, const OpPlan& plan, const Site& site, const DetectionSession& session,
                      c10::function_ref<std::optional<Owner>()> owner_of_argument);

}  // namespace torchnan
