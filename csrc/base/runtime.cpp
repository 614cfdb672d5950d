#include "base/runtime.h"

#include <atomic>

#include "base/scope_table.h"

namespace torchnan {
namespace {

class NullRuntime final : public Runtime {
 public:
  SiteId current_stack_id() noexcept override { return current_scope(); }
  SiteId nest_stack(SiteId live, SiteId) noexcept override { return live; }
  bool has_scopes_in_stacks() const noexcept override { return true; }
  bool reports_backward_roots() const noexcept override { return false; }
  ResolvedSite resolve_site(const Site& site, const DetectionSession&) override {
    ResolvedSite resolved;
    if (!site.node.empty()) resolved.phase = Phase::kBackward;
    resolved.stack = frames_of_scope(site.node.empty() ? site.live : site.forward);
    return resolved;
  }
  std::vector<ResolvedSite> resolve_sites(const std::vector<Site>& sites, const DetectionSession&) override {
    return std::vector<ResolvedSite>(sites.size());
  }
  std::vector<ReachableTensor> reachable_tensors(const std::vector<at::Tensor>& tensors) override {
    std::vector<ReachableTensor> all;
    for (const at::Tensor& tensor : tensors) all.push_back({tensor});
    return all;
  }
};

NullRuntime null_runtime;
std::atomic<Runtime*> current_runtime{&null_runtime};

}  // namespace

Runtime& runtime() { return *current_runtime.load(std::memory_order_acquire); }
void set_runtime(Runtime* runtime) { current_runtime.store(runtime, std::memory_order_release); }

}  // namespace torchnan
