#include "intercept/disproof.h"

#include <cmath>
#include <string>

#include "check/bounds/bound_cache.h"
#include "detection/error_containment.h"
#include "detection/withdraw_rule.h"
#include "check/operators/for_each_tensor.h"
#include "check/scan/tensor_scan.h"
#include "base/format.h"

namespace torchnan {
namespace {

std::string described(const at::Tensor& tensor) {
  return format_text("{} [{}] strides [{}]", c10::toString(tensor.scalar_type()), join_text(tensor.sizes(), ", "),
                     join_text(tensor.strides(), ", "));
}

std::string described(const OpPlan& plan, c10::ArrayRef<Operand> arguments) {
  std::string text;
  for (size_t index = 0; index < arguments.size(); ++index) {
    for_each_tensor(arguments[index], [&](const at::Tensor& tensor, int64_t) {
      if (!tensor.is_cpu()) return;
      const double bound = bound_cache().find(tensor).bound.max_abs;
      text += format_text(", {} {} within {:.4g}", plan.argument_names[index], described(tensor), bound);
    });
  }
  return text;
}

// Whether a tensor that is known to be finite holds a value beyond its bound. If so, its bound is dropped.
bool ends_beyond_its_bound(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || !bound_cache().is_finite(tensor)) return false;
  const ScanResult found = check_finite(tensor);
  if (found.skip != Skip::kNone) return false;
  if (found.finite && found.max_abs <= bound_cache().find(tensor).bound.max_abs) return false;
  bound_cache().mark_stale(tensor);
  return true;
}

bool is_any_beyond_its_bound(const OpPlan& plan, c10::ArrayRef<Operand> arguments) {
  bool is_any = false;
  for (size_t index = 0; index < arguments.size(); ++index) {
    if (plan.mutated_schema_argument(index) != nullptr) continue;
    for_each_tensor(arguments[index],
                    [&](const at::Tensor& tensor, int64_t) { is_any |= ends_beyond_its_bound(tensor); });
  }
  return is_any;
}

std::string found_in(const HostResults::Disproof& disproof) {
  if (!disproof.found.finite) return "and holds a NaN or Inf";
  if (disproof.is_negative) return "and without negative numbers, and holds one";
  return format_text("and holds {:.4g}", disproof.found.max_abs);
}

}  // namespace

void report_disproof(DetectionSession& session, const OpPlan& plan, c10::ArrayRef<Operand> arguments,
                     const HostResults::Disproof& disproof) noexcept {
  run_contained(session, "comparing a result with its bound", [&] {
    if (is_any_beyond_its_bound(plan, arguments)) return;
    withdraw_rule(
        session, plan,
        format_text("result {}, {}, was proved to be within {:.4g}, {}{}", disproof.output, described(disproof.result),
                    disproof.bound, found_in(disproof), described(plan, arguments)));
    bound_cache().forget_bounds();
  });
}

}  // namespace torchnan
