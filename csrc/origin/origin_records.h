// The beginnings of lineages: what is told of a value's origin is gathered here, while it can be.
#pragma once

#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>

#include "scan/nonfinite_kinds.h"
#include "origin/arguments.h"
#include "origin/nonfinite_registry.h"

namespace torchnan {

// With what is known of every root; what is told of its values is the caller's to add.
std::shared_ptr<OriginRecord> new_root(OriginRecord::Source source, const OpPlan& plan, Site site,
                                       DetectionSession& session);

// The formula of a node is often gradient times slope. A slope that is infinite where the gradient is zero makes a NaN
// of it, and that is what the node makes: the slope is no gradient yet. `kinds` are those of a result of `plan` in this
// run of a node.
void mark_factor(OriginRecord& root, uint64_t node_execution_id, const OpPlan& plan, NonfiniteKinds kinds);

// Of several kinds that which is told.
Kind dominant_kind(NonfiniteKinds kinds);

// The call has made values of these kinds in `result`, which is output number `output`.
std::shared_ptr<OriginRecord> operation_root(const CallContext& call, const at::Tensor& result, int64_t output,
                                             NonfiniteKinds kinds);

// The call has written, or is about to use, a non-finite number of the program's.
std::shared_ptr<OriginRecord> constant_root(const CallContext& call, const at::Tensor& result);

// Nobody was seen making what is in `argument`, and this call is its first reader.
std::shared_ptr<OriginRecord> external_root(const CallContext& call, const at::Tensor& argument, NonfiniteKinds kinds);

// Whether it was made before this process was forked off another. What becomes of it here may be told here; that it is
// left over is the parent's to tell.
bool is_inherited(const OriginRecord& root);

// The module parameter or buffer whose memory `tensor` is: of the session's model, of a module on this thread's stack,
// or else, if `search_all_modules`, of any.
std::optional<Owner> owner_of(const at::Tensor& tensor, bool search_all_modules, const DetectionSession& session);
// The same by its storage, as used at `use`.
std::optional<Owner> owner_of(const c10::StorageImpl* storage, SiteId use, bool search_all_modules,
                              const DetectionSession& session);

// MutatedArgument into memory by copy_() or fill_(), and no more.
bool is_constant_write(const Provenance& record);

// The record of a bad argument, of a new external root if there is none. What is meant elsewhere is an accident
// in a weight. What is found is remembered.
NonfiniteRegistry::ProvenancePtr record_of_argument(const CallContext& call, const at::Tensor& argument,
                                                    NonfiniteKinds kinds);

// The call may be the first to compute with the external or constant values of `argument`, or to read them as a
// module's own.
void record_entry(const CallContext& call, const at::Tensor& argument, OriginRecord& root);

}  // namespace torchnan
