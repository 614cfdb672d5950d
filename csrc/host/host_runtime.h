// What is known of the program that is being watched: where it is, what belongs to which module, what it still holds.
// The core knows nothing of languages; a host (Python) plugs in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <torchnan/export.h>
#include <torchnan/finding.h>

namespace torchnan {

class DetectionSession;

// A call stack, interned: equal stacks have equal ids. 0 stands for "not known".
using SiteId = uint32_t;

// Where an operation ran, as far as it is known without resolving anything.
struct Site {
  SiteId live = 0;                 // the stack at the moment of the operation
  SiteId forward = 0;              // in the backward pass: the stack of the forward operation that made the node
  std::string node;                // "LogBackward0", empty outside the backward pass
  uint64_t node_execution_id = 0;  // which execution of it; 0 outside the backward pass
  bool grad_mode = false;
  uint64_t thread = 0;
  int64_t step = 0;
};

// A site in the words of the report.
struct ResolvedSite {
  std::vector<Frame> stack;
  std::optional<std::string> module;
  Phase phase = Phase::kForward;
};

struct Owner {
  bool is_buffer = false;
  std::string name;
};

struct ReachableTensor {
  at::Tensor tensor;
  bool as_gradient = false;  // by being the gradient of a leaf only
};

class TORCHNAN_API HostRuntime {
 public:
  virtual ~HostRuntime() = default;

  // The stack of this thread. Called for every operation that makes a backward node: takes no lock and allocates
  // nothing for a stack it has seen before.
  virtual SiteId current_stack_id() noexcept = 0;

  // The same stack, inside the run of a backward node whose forward call was at `outer`: what is recomputed there
  // belongs where the node was made.
  virtual SiteId nest_stack(SiteId live, SiteId outer) noexcept = 0;

  // Whether the host tells of the tensors that backward() is called on (report_tensors()), so that nobody has to guess.
  virtual bool reports_backward_roots() const noexcept = 0;

  // The rest is called only when there is something to report. A question that throws leaves its answer open
  // (origin/host_queries.h).

  // Whether the operation at `site` is a loss scaler's own arithmetic.
  virtual bool is_loss_scaling(const Site& site, const DetectionSession& session) = 0;
  virtual ResolvedSite resolve_site(const Site& site, const DetectionSession& session) = 0;
  // Of many operations outside the backward pass, without their stacks.
  virtual std::vector<ResolvedSite> resolve_sites(const std::vector<Site>& sites, const DetectionSession& session) = 0;

  // The module parameter or buffer with this storage: of the session's model, of the model that a module on the stack
  // of `use` is part of, or else, if `search_all_modules`, of any.
  virtual std::optional<Owner> owner_of_storage(const c10::StorageImpl* storage, SiteId use, bool search_all_modules,
                                                const DetectionSession& session) = 0;

  // What the program itself still holds, rather than a backward graph, of the storages of these tensors.
  virtual std::vector<ReachableTensor> reachable_tensors(const std::vector<at::Tensor>& tensors) = 0;
};

// The host's program; without a host one of which nothing is known.
TORCHNAN_API HostRuntime& host_runtime();
TORCHNAN_API void set_host(HostRuntime* host);  // must live until the process ends

}  // namespace torchnan
