#include "intercept/install_interceptor.h"

#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include <torch/library.h>
#include <torch/headeronly/version.h>

#include "intercept/fallback.h"
#include "intercept/typed_ops.h"
#include "base/dispatch_key.h"
#include "check/operators/op_plan.h"
#include "base/fork_safe_mutex.h"
#include "base/format.h"

namespace torchnan {
namespace {

struct Installation {
  ForkSafeMutex mutex{ForkSafeMutex::kInstallation};
  bool done = false;
  std::vector<std::unique_ptr<torch::Library>> libraries;
};

Installation& here = *new Installation;  // never destroyed: the dispatcher calls into us until the process ends

// The dispatcher itself skips a fallthrough kernel: views cost nothing.
void let_views_fall_through(torch::Library& aten) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    const OpPlan::Handling handling = make_plan(*op).handling;
    if (handling != OpPlan::Handling::kPass && handling != OpPlan::Handling::kDecompose) continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    aten.impl(full.c_str(), torch::CppFunction::makeFallthrough());
  }
}

void install_on(c10::DispatchKey key, std::vector<std::unique_ptr<torch::Library>>& libraries) {
  using Kind = torch::Library::Kind;
  auto everything = std::make_unique<torch::Library>(Kind::IMPL, "_", key, "torchnan", 0);
  everything->fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
  auto aten = std::make_unique<torch::Library>(Kind::IMPL, "aten", key, "torchnan", 0);
  let_views_fall_through(*aten);
  intercept_hot_operators_typed(*aten);
  intercept_small_operators_typed(*aten);
  libraries.push_back(std::move(everything));
  libraries.push_back(std::move(aten));
}

}  // namespace

void install_interceptor() {
  const std::lock_guard lock(here.mutex);
  if (here.done) return;
  if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kInterceptorKey)) {
    throw std::runtime_error(
        format_text("torchnan cannot intercept the operations of PyTorch {}: dispatch key {} already has a backend "
                    "fallback, from PyTorch itself or from another extension (torchdistx, a plugin). Use a torchnan "
                    "that was made for this PyTorch, or do not load the other extension in the same process.",
                    TORCH_VERSION, c10::toString(kInterceptorKey)));
  }
  install_on(kInterceptorKey, here.libraries);
  here.done = true;
}

}  // namespace torchnan
