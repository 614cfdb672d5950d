#include "intercept/dispatch_key.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include <fmt/format.h>
#include <torch/library.h>
#include <torch/headeronly/version.h>

#include "intercept/fallback.h"
#include "intercept/op_plan.h"
#include "intercept/typed_ops.h"

namespace torchnan {
namespace {

// Keys that no operator of PyTorch uses, best first. Fake lies below autograd and below the Python modes, where
// every kernel-level operation passes. PyTorch means to use it itself one day, so it is probed, not assumed.
constexpr c10::DispatchKey kCandidates[] = {c10::DispatchKey::Fake};

struct Installation {
  std::mutex mutex;
  std::atomic<c10::DispatchKey> key{c10::DispatchKey::Undefined};
  std::vector<std::unique_ptr<torch::Library>> libraries;
};

Installation& installation() {
  static auto* made = new Installation;  // never destroyed: the dispatcher calls into us until the process ends
  return *made;
}

// A fallthrough kernel is skipped by the dispatcher itself: views cost nothing.
void let_views_fall_through(torch::Library& aten) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op) continue;
    const OpPlan::Course course = make_plan(*op).course;
    if (course != OpPlan::Course::kPass && course != OpPlan::Course::kDecompose) continue;
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
  libraries.push_back(std::move(everything));
  libraries.push_back(std::move(aten));
}

}  // namespace

c10::DispatchKey install_interceptor() {
  Installation& here = installation();
  const std::lock_guard lock(here.mutex);
  if (here.key != c10::DispatchKey::Undefined) return here.key;
  for (const c10::DispatchKey key : kCandidates) {
    if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key)) continue;
    install_on(key, here.libraries);
    here.key = key;
    return key;
  }
  throw std::runtime_error(
      fmt::format("torchnan cannot watch this PyTorch ({}): dispatch key {} already has a backend fallback, from "
                  "PyTorch itself or from another extension (torchdistx, a plugin). Use a torchnan that was made "
                  "for this PyTorch, or do not load the other extension in the same process.",
                  TORCH_VERSION, c10::toString(kCandidates[0])));
}

std::optional<c10::DispatchKey> interceptor_key() {
  const c10::DispatchKey key = installation().key;
  if (key == c10::DispatchKey::Undefined) return std::nullopt;
  return key;
}

}  // namespace torchnan
