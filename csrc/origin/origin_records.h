// Makes origin records, with all that the report needs while it can still be found out.
#pragma once

#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "scan/nonfinite_kinds.h"
#include "origin/arguments.h"
#include "origin/nonfinite_registry.h"

namespace torchnan {

// Makes a record with what every origin has; the caller adds what it knows of the values.
std::shared_ptr<OriginRecord> new_root(OriginRecord::Source source, const OpPlan& plan, Site site,
                                       DetectionSession& session);

// The formula of a node is often gradient times slope. A slope that is infinite where the gradient is zero makes a NaN
// of it, and that is what the node makes: the slope is no gradient yet. `kinds` are those of a result of `plan` in this
// run of a node.
void mark_factor(OriginRecord& root, uint64_t node_execution_id, const OpPlan& plan, NonfiniteKinds kinds);

// Returns the one of several kinds that is reported.
Kind dominant_kind(NonfiniteKinds kinds);

// Records that the call has made values of these kinds in `result`, which is output number `output`.
std::shared_ptr<OriginRecord> operation_root(const CallContext& call, const at::Tensor& result, int64_t output,
                                             NonfiniteKinds kinds);

// Records that the call has written, or is about to use, a non-finite number of user code.
std::shared_ptr<OriginRecord> constant_root(const CallContext& call, const at::Tensor& result);

// Records that nobody was seen making what is in `argument`, and that this call is its first reader.
std::shared_ptr<OriginRecord> external_root(const CallContext& call, const at::Tensor& argument, NonfiniteKinds kinds);

// Whether it was made before this process was forked off another. Harm that it does here is reported here; that it is
// left over is for the parent to report.
bool is_inherited(const OriginRecord& root);

// Returns the module parameter or buffer whose memory `tensor` is: of the session's model, of a module on this thread's
// stack, or else, if `search_all_modules`, of any.
std::optional<Owner> owner_of(const at::Tensor& tensor, bool search_all_modules, const DetectionSession& session);
// The same by its storage, as used at `use`.
std::optional<Owner> owner_of(const c10::StorageImpl* storage, SiteId use, bool search_all_modules,
                              const DetectionSession& session);

// Whether the values were only put into memory, by copy_() or fill_().
bool is_constant_write(const Provenance& record);

// Returns the provenance of a bad argument, and remembers a new external origin if there is none. What is intentional
// elsewhere is an accident in a weight.
NonfiniteRegistry::ProvenancePtr record_of_argument(const CallContext& call, const at::Tensor& argument,
                                                    NonfiniteKinds kinds);

// Records an operation that may be the first to compute with values that no operation made, or to read them as a
// module's own.
void record_first_use(OriginRecord& root, const OpPlan& plan, const Site& site, const DetectionSession& session,
                      c10::function_ref<std::optional<Owner>()> owner_of_argument);

}  // namespace torchnan
