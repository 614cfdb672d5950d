// The operator torchnan::guard, behind which values and gradients must be finite.
#include <torchnan/guard.h>

#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include "intercept/harm_checks.h"
#include "detection/thread_state.h"
#include "base/environment.h"
#include "base/fork_safe_mutex.h"

namespace torchnan {
namespace {

namespace autograd = torch::autograd;

// A session for guards only, which raises. Made when it is needed first.
struct Standalone {
  ForkSafeMutex mutex{ForkSafeMutex::kInnermost};
  std::shared_ptr<DetectionSession> session;
};

Standalone& standalone = *new Standalone;  // never destroyed: threads may outlive static destructors

// Returns the session of the current thread, or else the standalone one.
std::shared_ptr<DetectionSession> session_of_guards() {
  if (auto session = ThreadState::current().shared_session()) return session;
  {
    const std::lock_guard lock(standalone.mutex);
    if (standalone.session != nullptr) return standalone.session;
  }
  auto made = std::make_shared<DetectionSession>(Options{});
  const std::lock_guard lock(standalone.mutex);
  if (standalone.session == nullptr) standalone.session = std::move(made);
  return standalone.session;
}

void check(const at::Tensor& x, const std::string& name, const std::source_location* where = nullptr) {
  if (!is_disabled()) report_guard(*session_of_guards(), x, name, where);
}

at::Tensor call_guard_copy(const at::Tensor& x, const std::string& name) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow("torchnan::_guard_copy", "")
      .typed<at::Tensor(const at::Tensor&, std::string_view)>()
      .call(x, name);
}

// Checks the gradient and passes it through.
class GuardBackward final : public autograd::Node {
 public:
  GuardBackward(std::string name, bool in_graph) : name_(std::move(name)), in_graph_(in_graph) {}
  std::string name() const override { return "GuardBackward"; }

  autograd::variable_list apply(autograd::variable_list&& gradients) override {
    if (!gradients[0].defined()) return {at::Tensor()};
    if (in_graph_) return {call_guard_copy(gradients[0], name_)};
    check(gradients[0], name_);
    return {gradients[0]};
  }

 private:
  const std::string name_;
  const bool in_graph_;  // the gradient may be traced too, so an operation has to check it
};

// Nodes have intrusive reference counts from PyTorch 2.13 on.
template <typename Node, typename Base = autograd::Node, typename... Args>
auto make_node(Args&&... args) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, Base>) {
    return c10::make_intrusive<Node>(std::forward<Args>(args)...);
  } else {
    const auto destroy = [](Base* node) { deleteNode(node); };  // of torch::autograd: does not recurse
    return std::shared_ptr<Node>(new Node(std::forward<Args>(args)...), destroy);
  }
}

// Whether a tensor is a wrapper: traced, vmapped, or differentiated by functorch.
bool is_wrapped(const at::Tensor& x) {
  static constexpr c10::DispatchKeySet kWrappers({
      c10::DispatchKey::Python,
      c10::DispatchKey::Functionalize,
      c10::DispatchKey::FuncTorchBatched,
      c10::DispatchKey::FuncTorchGradWrapper,
  });
  return x.key_set().has_any(kWrappers) || x.is_meta();
}

// Returns a view, with torchnan's node in front of the node of the view.
at::Tensor guard_view(const at::Tensor& x, const std::string& name, const std::source_location* where) {
  check(x, name, where);
  at::Tensor out = at::alias(x);
  if (!out.requires_grad()) return out;
  auto node = make_node<GuardBackward>(name, false);
  node->add_next_edge(autograd::impl::gradient_edge(out));
  autograd::set_history(out, node);
  return out;
}

// The form for compiled graphs: an operator that returns its argument cannot be compiled, so it copies.
at::Tensor guard_copy_kernel(const at::Tensor& x, std::string_view name) {
  check(x, std::string(name));
  return x.clone();
}

at::Tensor guard_copy_meta(const at::Tensor& x, std::string_view) { return at::empty_like(x); }

at::Tensor guard_copy_autograd(const at::Tensor& x, std::string_view name) {
  at::Tensor out = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_guard_copy(x, std::string(name));
  }();
  if (autograd::compute_requires_grad(x)) {
    auto node = make_node<GuardBackward>(std::string(name), true);
    node->set_next_edges(autograd::collect_next_edges(x));
    autograd::set_history(out, node);
  }
  if (x._fw_grad(0).defined()) out._set_fw_grad(x._fw_grad(0), 0, /*is_inplace_op=*/false);
  return out;
}

at::Tensor guard_copy_batched(const at::Tensor& x, std::string_view name) {
  const auto* batched = at::functorch::maybeGetBatchedImpl(x);
  const c10::impl::ExcludeDispatchKeyGuard unwrapped(c10::DispatchKey::FuncTorchBatched);
  return at::functorch::makeBatched(call_guard_copy(batched->value(), std::string(name)), batched->bdim(),
                                    batched->level());
}

// `where` is a line of C++; null if the operator was called.
at::Tensor guard_at(const at::Tensor& x, const std::string& name, const std::source_location* where) {
  if (is_disabled()) return x;
  return is_wrapped(x) ? call_guard_copy(x, name) : guard_view(x, name, where);
}

at::Tensor guard_op(const at::Tensor& x, std::string_view name) { return guard_at(x, std::string(name), nullptr); }

std::vector<at::Tensor> guard_list_op(at::TensorList xs, std::string_view name) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& x : xs) out.push_back(guard_op(x, name));
  return out;
}

}  // namespace

at::Tensor guard(const at::Tensor& x, const std::string& name, const std::source_location& where) {
  return guard_at(x, name, &where);
}

TORCH_LIBRARY_FRAGMENT(torchnan, m) {
  m.def("guard(Tensor(a) x, str name=\"\") -> Tensor(a)");
  m.def("guard.list(Tensor[] x, str name=\"\") -> Tensor[]");
  m.def("_guard_copy(Tensor x, str name) -> Tensor");
}

TORCH_LIBRARY_IMPL(torchnan, CompositeImplicitAutograd, m) {
  m.impl("guard", &guard_op);
  m.impl("guard.list", &guard_list_op);
}
TORCH_LIBRARY_IMPL(torchnan, FuncTorchBatchedDecomposition, m) {
  m.impl("guard", &guard_op);
  m.impl("guard.list", &guard_list_op);
}
TORCH_LIBRARY_IMPL(torchnan, CompositeExplicitAutograd, m) { m.impl("_guard_copy", &guard_copy_kernel); }
TORCH_LIBRARY_IMPL(torchnan, Meta, m) { m.impl("_guard_copy", &guard_copy_meta); }
TORCH_LIBRARY_IMPL(torchnan, Autograd, m) { m.impl("_guard_copy", &guard_copy_autograd); }
TORCH_LIBRARY_IMPL(torchnan, FuncTorchBatched, m) { m.impl("_guard_copy", &guard_copy_batched); }

}  // namespace torchnan
