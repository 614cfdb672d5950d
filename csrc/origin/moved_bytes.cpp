#include "origin/moved_bytes.h"

#include <algorithm>
#include <atomic>
#include <string>

#include "check/bounds/bound_cache.h"
#include "check/operators/for_each_tensor.h"
#include "origin/arguments.h"
#include "check/scan/tensor_scan.h"

namespace torchnan {
namespace {

std::atomic<bool> has_received_bytes{false};

int64_t longest_list(c10::ArrayRef<Operand> arguments) {
  size_t longest = 1;
  for (const Operand& argument : arguments) {
    if (argument.kind == Operand::Kind::kValues) longest = std::max(longest, argument.count);
  }
  return static_cast<int64_t>(longest);
}

bool is_copy(const at::Tensor& original, const at::Tensor& copy) {
  return original.scalar_type() == copy.scalar_type() && original.nbytes() == copy.nbytes() &&
         original.is_contiguous() && copy.is_contiguous();
}

}  // namespace

bool may_be_bytes(const at::Tensor& tensor) {
  return tensor.defined() && c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false) &&
         is_dense_on_host(*tensor.unsafeGetTensorImpl());
}

void set_has_received_bytes(bool has) noexcept { has_received_bytes.store(has, std::memory_order_relaxed); }

bool may_move_bytes(const OpPlan& plan) noexcept {
  return plan.is_data_movement && (has_received_bytes.load(std::memory_order_relaxed) || nonfinite_registry().in_use());
}

void record_moved_bytes(const OpPlan& plan, c10::ArrayRef<Operand> arguments, const at::Tensor& result,
                        int64_t output) {
  if (!may_be_bytes(result)) return;
  const int64_t size = plan.is_foreach_elementwise ? longest_list(arguments) : 1;
  NonfiniteRegistry::ProvenancePtr provenance;
  const std::string* collective = nullptr;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (plan.mutated_schema_argument(i) != nullptr) continue;
    for_each_tensor(arguments[i], [&](const at::Tensor& moved, int64_t element) {
      if (!may_be_bytes(moved) || !is_made_of(plan, element, output, size)) return;
      if (collective == nullptr) collective = bound_cache().pending_collective(moved);
      if (!nonfinite_registry().contains(moved)) return;
      if (is_copy(moved, result) && nonfinite_registry().remember_copy(moved, result)) return;
      const auto found = nonfinite_registry().find_present(moved);
      if (found != nullptr) provenance = provenance == nullptr ? found : joined(*provenance, *found);
    });
  }
  if (provenance != nullptr) nonfinite_registry().remember(result, provenance);
  if (collective != nullptr) bound_cache().record_pending_collective(result, collective);
}

}  // namespace torchnan
