// The runtime of user code: its interpreter (Python). It answers where an operation was called, which module owns a
// tensor, and which tensors user code can still reach. The core depends on no language.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <torchnan/export.h>
#include <torchnan/finding.h>

namespace torchnan {

class DetectionSession;

// The id of an interned call stack: equal stacks have equal ids. 0 means unknown.
using SiteId = uint32_t;

// The location of an operation, as far as it is known without resolving the stack.
struct Site {
  SiteId live = 0;                 // the stack when the operation ran
  SiteId forward = 0;              // in the backward pass: the stack of the forward operation that made the node
  std::string node;                // "LogBackward0", empty outside the backward pass
  uint64_t node_execution_id = 0;  // the execution of the node; 0 outside the backward pass
  bool grad_mode = false;
  uint64_t thread = 0;
  int64_t step = 0;
  std::vector<Frame> inner{};  // lines inside of functions that the interpreter called: of scopes in C++
};

// A site as the report shows it.
struct ResolvedSite {
  std::vector<Frame> stack;
  std::vector<Frame> backward_stack;  // as in a finding
  std::optional<std::string> module;
  std::string module_type;
  Phase phase = Phase::kForward;
};

// Memory of a tensor: a range of bytes of a storage. All of it if the range is unknown.
struct StorageSpan {
  const c10::StorageImpl* storage = nullptr;
  int64_t begin = 0;
  int64_t end = std::numeric_limits<int64_t>::max();
};

struct Owner {
  bool is_buffer = false;
  std::string name;
};

// The largest |x| of a parameter before the first step of its optimizer.
struct InitialMagnitude {
  double absmax = 0;
  int64_t step = 0;
};

struct ReachableTensor {
  at::Tensor tensor;
  bool as_gradient = false;  // reachable only as the gradient of a leaf
};

class TORCHNAN_API Runtime {
 public:
  virtual ~Runtime() = default;

  // Returns the stack of this thread. Called for every operation that creates a backward node: takes no lock and
  // allocates nothing for a known stack.
  virtual SiteId current_stack_id() noexcept = 0;

  // Returns the stack `live` nested in `outer`, for operations in a backward node whose forward call was at `outer`:
  // recomputation belongs to the site where the node was created.
  virtual SiteId nest_stack(SiteId live, SiteId outer) noexcept = 0;

  // Whether the runtime's stacks contain the scopes that C++ code has opened (torchnan/scope.h).
  virtual bool has_scopes_in_stacks() const noexcept = 0;

  // Whether the runtime reports the tensors that backward() is called on, so that the core need not guess them.
  virtual bool reports_backward_roots() const noexcept = 0;

  // The following are called only when there is something to report. If one throws, its answer stays unknown
  // (origin/runtime_queries.h). By default it is unknown.

  // Returns whether the operation at `site` belongs to a loss scaler.
  virtual bool is_loss_scaling(const Site&, const DetectionSession&) { return false; }
  virtual ResolvedSite resolve_site(const Site& site, const DetectionSession& session) = 0;
  // Resolves many operations outside the backward pass, without their stacks.
  virtual std::vector<ResolvedSite> resolve_sites(const std::vector<Site>& sites, const DetectionSession& session) = 0;

  // Returns the parameter or buffer with this memory. Looks in the session's model, then in the models of the modules
  // on the stack of `use`, and then, if `search_all_modules`, in every module.
  virtual std::optional<Owner> owner_of_memory(const StorageSpan& /*memory*/, SiteId /*use*/,
                                               bool /*search_all_modules*/, const DetectionSession&) {
    return std::nullopt;
  }

  // Whether the operation at `site` runs only to infer shapes, on memory without values.
  virtual bool is_shape_inference(const Site&) { return false; }

  // Returns the name of the parameter whose gradient is at this index of a bucket that this thread communicates; the
  // bucket has `numel` elements. If the tensor is not the bucket's, returns the names of all parameters of the bucket.
  // Empty if this thread communicates no bucket.
  virtual std::string bucket(int64_t /*numel*/, int64_t /*element*/) { return ""; }

  // Returns the rank of this process in its process group; nothing if there is none.
  virtual std::optional<int64_t> rank() { return std::nullopt; }

  // Returns the initial magnitude of a parameter with this storage.
  virtual std::optional<InitialMagnitude> initial_magnitude(const c10::StorageImpl*) { return std::nullopt; }

  // Returns, as text, the dataset index that this thread is reading: of the sample that is being made, or that `value`
  // is part of. Empty if it reads none.
  virtual std::string dataset_item(const at::Tensor& /*value*/) { return ""; }

  // Returns which hyperparameter of the running optimizer step is not finite, as a clause; empty if none is.
  virtual std::string bad_hyperparameter() { return ""; }

  // Returns the tensors on the storages of `tensors` that user code can reach; a backward graph does not count.
  virtual std::vector<ReachableTensor> reachable_tensors(const std::vector<at::Tensor>& tensors) = 0;
};

// Returns the runtime; without one, an object whose answers are all unknown.
TORCHNAN_API Runtime& runtime();
TORCHNAN_API void set_runtime(Runtime* runtime);  // must live until the process ends

}  // namespace torchnan
