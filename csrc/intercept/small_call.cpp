#include "intercept/small_call.h"

#include <c10/util/accumulate.h>

#include "check/bounds/bound_cache.h"
#include "detection/error_containment.h"
#include "intercept/op_entry.h"
#include "intercept/device_results.h"
#include "origin/moved_bytes.h"
#include "origin/nonfinite_registry.h"

namespace torchnan {
namespace {

bool is_finite(const at::Tensor& read) {
  const ScanResult verdict = check_finite(read);
  return verdict.skip == Skip::kNone && verdict.finite;
}

}  // namespace

bool SmallCall::is_small(const at::ITensorListRef& tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!is_small(tensor)) return false;
    elements += tensor.numel();
  }
  return elements <= kSmall;
}

bool SmallCall::is_small(const c10::SymIntArrayRef& sizes) {
  const auto numbers = c10::asIntArrayRefSlowOpt(sizes);
  return numbers && c10::multiply_integers(*numbers) <= kSmall;
}

bool SmallCall::try_start(const OpPlan& plan, const at::Tensor& first, c10::DispatchKeySet keys) {
  if (!session_->asks_for_finiteness_alone() || nonfinite_registry().in_use() || DeviceResults::concerns(keys))
    return false;
  if (plan.handling == OpPlan::Handling::kRead ? !is_finite(first) : plan.handling != OpPlan::Handling::kCheck)
    return false;
  if (plan.writes_in_place() && !bound_cache().is_finite(first)) return false;
  plan_ = &plan;
  first_ = &first;
  run_contained(*session_, "recording a call site", [&] { record_op_entry(thread_, *session_); });
  return true;
}

size_t SmallCall::check(c10::ArrayRef<const at::Tensor*> results) {
  Counters& counters = thread_.counters();
  size_t checked = 0;
  run_contained(*session_, "checking results", [&] {
    for (; checked < results.size(); ++checked) {
      const at::Tensor& result = *results[checked];
      if (!result.defined()) continue;
      const ScanResult verdict = check_finite(result);
      if (verdict.skip == Skip::kNotFloating && !plan_->writes_in_place() && !may_move_bytes(*plan_)) {
        counters.count_skipped(verdict.skip);
        continue;
      }
      if (verdict.skip != Skip::kNone || !verdict.finite) [[unlikely]]
        return;
      counters.count_scanned(verdict.bytes);
      record_bound(thread_, *plan_, result, {verdict.max_abs});
    }
    record_proved_sign(*plan_, *first_);
  });
  return checked;
}

void SmallCall::forget() const noexcept {
  if (plan_->writes_in_place()) bound_cache().forget(*first_);
}

}  // namespace torchnan
