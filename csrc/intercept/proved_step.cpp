#include "intercept/proved_step.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "bounds/bound_cache.h"
#include "bounds/bound_source.h"
#include "detection/error_containment.h"
#include "detection/thread_state.h"
#include "device/devices.h"
#include "intercept/host_results.h"
#include "operators/dispatch_key.h"
#include "scan/storage_of.h"
#include "scan/tensor_scan.h"

namespace torchnan {
namespace {

thread_local ProvedStep step_of_thread;

// What the last operations of such a step are called. Never destroyed: the bound cache refers to them.
const std::string& kUpdatesFirst = *new std::string("aten::lerp_");
const std::string& kUpdatesSecond = *new std::string("aten::addcmul_");
const std::string& kUpdatesLargest = *new std::string("aten::maximum");
const std::string& kUpdatesParameter = *new std::string("aten::addcdiv_");

// Values that lie densely in memory of their own.
bool is_simple(const at::Tensor& tensor, c10::ScalarType dtype, int64_t count) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return is_dense_on_host(impl) && impl.numel() == count && tensor.scalar_type() == dtype &&
         covers_whole_storage(tensor, *impl.unsafe_storage().unsafeGetStorageImpl());
}

std::optional<Bound> known_bound(const at::Tensor& tensor) {
  const BoundCache::Entry entry = bound_cache().find(tensor);
  if (entry.state != BoundCache::State::kFinite || !entry.bound.known()) return std::nullopt;
  return entry.bound;
}

// Reads a tensor that is known to be finite for its exact bound.
std::optional<Bound> tightened_bound(const at::Tensor& tensor) {
  ThreadState& thread = ThreadState::current();
  Counters& counters = thread.counters();
  const BoundSource source(counters.bytes, counters.bytes_scanned_unknown, thread.moments(), nullptr);
  return source.tighten(tensor) ? known_bound(tensor) : std::nullopt;
}

// Returns a number of steps that is kept in a tensor; -1 if it is none.
double number_of_steps(const at::Tensor& steps) {
  if (!is_dense_on_host(*steps.unsafeGetTensorImpl()) || steps.numel() != 1) return -1;
  if (steps.scalar_type() == c10::ScalarType::Float) return *steps.const_data_ptr<float>();
  if (steps.scalar_type() == c10::ScalarType::Double) return *steps.const_data_ptr<double>();
  return -1;
}

}  // namespace

ProvedStep& ProvedStep::current() { return step_of_thread; }

// Modes see the calls before the interceptor does, and may do something else.
bool ProvedStep::is_possible(const DetectionSession& session) {
  return session.asks_for_finiteness_alone() && !session.options().exact && !devices().in_use() &&
         !c10::impl::TorchDispatchModeTLS::any_modes_set() && at::impl::PythonTorchFunctionTLS::stack_len() == 0 &&
         c10::impl::tls_is_dispatch_key_included(kInterceptorKey) &&
         !c10::impl::tls_is_dispatch_key_excluded(kInterceptorKey);
}

bool ProvedStep::add(const AdamTensors& tensors, const AdamHyperparameters& hyperparameters, int64_t results) {
  const auto& [parameter, gradient, first_moment, second_moment, largest_second_moment, steps] = tensors;
  const c10::ScalarType dtype = parameter.scalar_type();
  const int64_t count = parameter.numel();
  if (dtype != c10::ScalarType::Float && dtype != c10::ScalarType::Double) return false;
  for (const at::Tensor* tensor : {&parameter, &gradient, &first_moment, &second_moment}) {
    if (!is_simple(*tensor, dtype, count)) return false;
  }
  const auto of_parameter = known_bound(parameter), of_gradient = known_bound(gradient);
  const auto of_first = known_bound(first_moment), of_second = known_bound(second_moment);
  if (!of_parameter || !of_gradient || !of_first || !of_second) return false;
  AdamBounds before{of_parameter->max_abs, of_gradient->max_abs, of_first->max_abs, of_second->max_abs};
  if (largest_second_moment != nullptr) {
    const auto of_largest = known_bound(*largest_second_moment);
    if (!is_simple(*largest_second_moment, dtype, count) || !of_largest) return false;
    before.largest_second_moment = of_largest->max_abs;
  }
  if (count > kSmall) before.history = ThreadState::current().moments().history_of(first_moment, second_moment);
  const auto prove = [&] {
    return bounds_after_adam_step(hyperparameters, before, number_of_steps(steps) + 1, range_of(dtype));
  };
  auto after = prove();
  if (!after) {  // the bound of a gradient is often too loose to be squared
    const auto exact = tightened_bound(gradient);
    if (!exact) return false;
    before.gradient = exact->max_abs;
    after = prove();
  }
  if (!after) return false;
  if (!of_second->nonnegative) {  // a fused kernel has written it: it is read once, and known from then on
    const auto shown = history_shown_by(first_moment, second_moment, range_of(dtype));
    if (!shown) return false;
    before.history = *shown;
    after = prove();
  }
  if (!after) return false;
  updates_.push_back({parameter, first_moment, second_moment,
                      largest_second_moment != nullptr ? *largest_second_moment : at::Tensor(), storage_of(gradient),
                      storage_of(steps), results, before.parameter, *after});
  return true;
}

bool ProvedStep::try_start() {
  if (!has_separate_memory()) return false;
  is_under_way_ = true;
  c10::impl::tls_set_dispatch_key_excluded(kInterceptorKey, true);
  return true;
}

// Whether nothing that an update writes is used by another one: a parameter may be there twice.
bool ProvedStep::has_separate_memory() {
  written_.clear();
  for (const Update& update : updates_) {
    for (const at::Tensor* written : {&update.parameter, &update.first_moment, &update.second_moment})
      written_.push_back(storage_of(*written));
    if (update.largest_second_moment.defined()) written_.push_back(storage_of(update.largest_second_moment));
    written_.push_back(update.steps);
  }
  std::sort(written_.begin(), written_.end());
  if (std::adjacent_find(written_.begin(), written_.end()) != written_.end()) return false;
  return std::none_of(updates_.begin(), updates_.end(), [this](const Update& update) {
    return std::binary_search(written_.begin(), written_.end(), update.gradient);
  });
}

void ProvedStep::finish(bool is_completed) noexcept {
  c10::impl::tls_set_dispatch_key_excluded(kInterceptorKey, false);
  is_under_way_ = false;
  ThreadState& thread = ThreadState::current();
  DetectionSession* const session = thread.session();
  if (is_completed && session != nullptr) {
    contain(*session, "recording an optimizer step", [&] {
      for (const Update& update : updates_) record(update, thread);
    });
  }
  updates_.clear();
}

// What is not recorded is not believed: its version is another one now.
void ProvedStep::record(const Update& update, ThreadState& thread) {
  const auto& [parameter, first_moment, second_moment, largest_second_moment, gradient, steps, results,
               parameter_before, after] = update;
  bound_cache().record_written(first_moment, {after.first_moment}, &kUpdatesFirst);
  bound_cache().record_written(second_moment, {after.second_moment, true}, &kUpdatesSecond);
  if (largest_second_moment.defined())
    bound_cache().record_written(largest_second_moment, {after.largest_second_moment, true}, &kUpdatesLargest);
  const bool is_small = parameter.numel() <= kSmall;
  if (!is_small) thread.moments().record_history(first_moment, second_moment, after.history);
  const bool has_bound = !is_small && std::isfinite(after.history.ratio) &&
                         !thread.moments().has_drifted(parameter, parameter_before, after.parameter);
  const ScanResult scanned = has_bound ? ScanResult{.max_abs = after.parameter} : check_finite(parameter);
  if (scanned.finite) bound_cache().record_written(parameter, {scanned.max_abs}, &kUpdatesParameter);
  const int64_t proved = has_bound ? results : results - 1;
  Counters& counters = thread.counters();
  counters.checked.add(results);
  counters.proved.add(proved);
  counters.bytes_proved.add(proved * static_cast<int64_t>(parameter.nbytes()));
  counters.bytes.add(scanned.bytes);
}

}  // namespace torchnan
