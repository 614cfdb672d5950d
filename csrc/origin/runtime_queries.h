// Queries of the runtime for a report. If one fails, its answer stays unknown and the report is made without it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/runtime.h"
#include "detection/session.h"

namespace torchnan {

ResolvedSite query_site(const Site& site, const DetectionSession& session);
std::vector<ResolvedSite> query_sites(const std::vector<Site>& sites, const DetectionSession& session);
bool ask_is_loss_scaling(const Site& site, const DetectionSession& session);
// Whether the operation runs only to infer shapes, on memory without values.
bool ask_is_shape_inference(const Site& site, const DetectionSession& session);
// Returns the name of the parameter whose gradient is at this element of the bucket that this thread communicates, or
// else the names of all parameters of the bucket; empty if it communicates none. `numel`: of the tensor of the element.
std::string query_bucket(int64_t numel, int64_t element, const DetectionSession& session);
std::optional<Owner> query_owner(const StorageSpan& memory, SiteId use, bool search_all_modules,
                                 const DetectionSession& session);
// Returns the rank in the process group, or else the one that a launcher has set.
std::optional<int64_t> query_rank(const DetectionSession& session);
std::optional<InitialMagnitude> query_initial_magnitude(const c10::StorageImpl* storage,
                                                        const DetectionSession& session);
std::string query_dataset_item(const at::Tensor& value, const DetectionSession& session);
std::string query_bad_hyperparameter(const DetectionSession& session);
std::vector<ReachableTensor> query_reachable_tensors(const std::vector<at::Tensor>& tensors,
                                                     const DetectionSession& session);

}  // namespace torchnan
