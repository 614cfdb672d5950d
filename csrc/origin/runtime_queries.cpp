#include "origin/runtime_queries.h"

#include "detection/error_containment.h"
#include "base/environment.h"

namespace torchnan {

ResolvedSite query_site(const Site& site, const DetectionSession& session) {
  ResolvedSite resolved;
  if (!site.node.empty()) resolved.phase = Phase::kBackward;
  run_contained(session, "resolving a call site", [&] { resolved = runtime().resolve_site(site, session); });
  resolved.stack.insert(resolved.stack.begin(), site.inner.begin(), site.inner.end());
  return resolved;
}

std::vector<ResolvedSite> query_sites(const std::vector<Site>& sites, const DetectionSession& session) {
  std::vector<ResolvedSite> resolved(sites.size());
  run_contained(session, "resolving call sites", [&] { resolved = runtime().resolve_sites(sites, session); });
  return resolved;
}

bool ask_is_loss_scaling(const Site& site, const DetectionSession& session) {
  bool answer = false;
  run_contained(session, "recognizing a loss scaler", [&] { answer = runtime().is_loss_scaling(site, session); });
  return answer;
}

bool ask_is_shape_inference(const Site& site, const DetectionSession& session) {
  bool answer = false;
  run_contained(session, "recognizing an inference of shapes", [&] { answer = runtime().is_shape_inference(site); });
  return answer;
}

std::string query_bucket(int64_t numel, int64_t element, const DetectionSession& session) {
  std::string names;
  run_contained(session, "naming the parameters of a bucket", [&] { names = runtime().bucket(numel, element); });
  return names;
}

std::optional<Owner> query_owner(const StorageSpan& memory, SiteId use, bool search_all_modules,
                                 const DetectionSession& session) {
  std::optional<Owner> owner;
  run_contained(session, "finding the owner of a tensor",
                [&] { owner = runtime().owner_of_memory(memory, use, search_all_modules, session); });
  return owner;
}

std::optional<int64_t> query_rank(const DetectionSession& session) {
  std::optional<int64_t> rank;
  run_contained(session, "asking for the rank", [&] { rank = runtime().rank(); });
  return rank ? rank : rank_from_environment();
}

std::optional<InitialMagnitude> query_initial_magnitude(const c10::StorageImpl* storage,
                                                        const DetectionSession& session) {
  std::optional<InitialMagnitude> known;
  run_contained(session, "looking up an initial weight", [&] { known = runtime().initial_magnitude(storage); });
  return known;
}

std::string query_dataset_item(const at::Tensor& value, const DetectionSession& session) {
  std::string item;
  run_contained(session, "finding an item of a dataset", [&] { item = runtime().dataset_item(value); });
  return item;
}

std::string query_bad_hyperparameter(const DetectionSession& session) {
  std::string which;
  run_contained(session, "finding a hyperparameter", [&] { which = runtime().bad_hyperparameter(); });
  return which;
}

std::vector<ReachableTensor> query_reachable_tensors(const std::vector<at::Tensor>& tensors,
                                                     const DetectionSession& session) {
  std::vector<ReachableTensor> held;
  run_contained(session, "finding reachable tensors", [&] { held = runtime().reachable_tensors(tensors); });
  return held;
}

}  // namespace torchnan
