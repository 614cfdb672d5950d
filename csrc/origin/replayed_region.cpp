#include "origin/replayed_region.h"

#include <utility>

#include "report/operator_name.h"

namespace torchnan {
namespace {

const std::shared_ptr<const ReplayedRegion> no_region;
// Set in a replay. Nearly no thread has one, so all others ask the pointer, which is found without a call.
thread_local std::shared_ptr<const ReplayedRegion> of_thread;
[[gnu::tls_model(
    "initial-exec")]] constinit thread_local const std::shared_ptr<const ReplayedRegion>* region_of_thread = nullptr;

// Whether the words of `name`, which has underscores between them, include `op`.
bool names(std::string_view name, std::string_view op) {
  const auto is_edge = [](char c) { return c == '_' || c == '.'; };
  for (size_t at = name.find(op); at != std::string_view::npos; at = name.find(op, at + 1)) {
    const size_t end = at + op.size();
    if ((at == 0 || is_edge(name[at - 1])) && (end == name.size() || is_edge(name[end]))) return true;
  }
  return false;
}

}  // namespace

const std::shared_ptr<const ReplayedRegion>& replayed_region() noexcept {
  return region_of_thread == nullptr ? no_region : *region_of_thread;
}

void set_replayed_region(std::shared_ptr<const ReplayedRegion> region) noexcept {
  of_thread = std::move(region);
  region_of_thread = of_thread == nullptr ? nullptr : &of_thread;
}

// In a fused kernel the value may be gone before it is stored, so the kernel may have written another kind.
std::string kernel_of(const ReplayedRegion& region, std::string_view op, NonfiniteKinds kinds) {
  const NonfiniteKinds reported = kinds.nan() ? NonfiniteKinds::only_nan() : kinds;
  const BadKernel* best = nullptr;
  int best_score = -1;
  for (const BadKernel& kernel : region.kernels) {
    const int score = 2 * names(kernel.name, bare_operator_name(op)) + (kernel.kinds & reported).any();
    if (score > best_score) {
      best = &kernel;
      best_score = score;
    }
  }
  return best == nullptr ? "" : best->name;
}

}  // namespace torchnan
