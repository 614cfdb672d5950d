#include "intercept/proved_step.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <optional>
#include <string>

#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "check/bounds/bound_cache.h"
#include "check/bounds/bound_source.h"
#include "detection/error_containment.h"
#include "detection/thread_state.h"
#include "device/devices.h"
#include "device/recorded_bounds.h"
#include "device/tighten.h"
#include "intercept/device_step.h"
#include "intercept/host_results.h"
#include "base/dispatch_key.h"
#include "check/scan/storage_of.h"
#include "check/scan/tensor_scan.h"

namespace torchnan {
namespace {

thread_local ProvedStep step_of_thread;

std::atomic<bool> step_is_disproved{false};  // by a scan, for the rest of the process
std::atomic<double> factor_for_test{1};      // factor that falsifies the bounds of parameters

// Names for the last operations of such a step. Never destroyed: the bound cache refers to them.
const std::string& kUpdatesFirst = *new std::string("aten::lerp_");
const std::string& kUpdatesSecond = *new std::string("aten::addcmul_");
const std::string& kUpdatesLargest = *new std::string("aten::maximum");
const std::string& kUpdatesParameter = *new std::string("aten::addcdiv_");

// Whether the values are dense, in memory that no other tensor uses.
bool is_simple(const at::Tensor& tensor, c10::ScalarType dtype, int64_t count) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return (is_dense_on_host(impl) || is_scannable_itself(tensor)) && impl.numel() == count &&
         tensor.scalar_type() == dtype && covers_whole_storage(tensor, *impl.unsafe_storage().unsafeGetStorageImpl());
}

bool are_simple(const AdamTensors& tensors) {
  const c10::ScalarType dtype = tensors.parameter.scalar_type();
  const int64_t count = tensors.parameter.numel();
  if (dtype != c10::ScalarType::Float && dtype != c10::ScalarType::Double) return false;
  for (const at::Tensor* tensor : {&tensors.parameter, &tensors.gradient, &tensors.first_moment, &tensors.second_moment,
                                   tensors.largest_second_moment}) {
    if (tensor == nullptr) continue;
    if (!is_simple(*tensor, dtype, count) || tensor->device() != tensors.parameter.device()) return false;
  }
  return tensors.parameter.is_cpu() || tensors.largest_second_moment == nullptr;
}

// The tensors of an update on a device, as the journal knows them: all are looked up with one lock.
class RecordedUpdate final : public ExternalBounds {
 public:
  explicit RecordedUpdate(const AdamTensors& tensors)
      : tensors_{&tensors.parameter, &tensors.gradient, &tensors.first_moment, &tensors.second_moment} {
    Devices::Lock locked(devices());
    for (size_t i = 0; i < tensors_.size(); ++i) known_[i] = locked.journal().look_up(*tensors_[i]);
  }

  // For these tensors.
  const Journal::RecordedKnowledge& of(const at::Tensor& tensor) const {
    return known_.at(std::find(tensors_.begin(), tensors_.end(), &tensor) - tensors_.begin());
  }
  Bound bound_of(const at::Tensor& tensor) const override { return of(tensor).bound; }
  bool is_made_by(const at::Tensor& tensor, std::string_view op) const override { return of(tensor).is_made_by(op); }
  uint64_t write_of(const at::Tensor& tensor) const override { return of(tensor).write_number(); }

 private:
  std::array<const at::Tensor*, 4> tensors_;
  std::array<Journal::RecordedKnowledge, 4> known_;
};

// Returns the bound of a tensor on a device that is known to be finite, if its assumption has not failed.
std::optional<Bound> bound_in(const Journal::RecordedKnowledge& known) {
  return known.write_number() != 0 && !known.bound.masked ? std::optional(known.bound) : std::nullopt;
}

// The same on the host.
std::optional<Bound> known_bound(const at::Tensor& tensor) {
  const BoundCache::Entry entry = bound_cache().find(tensor);
  if (entry.state != BoundCache::State::kFinite || !entry.bound.known()) return std::nullopt;
  return entry.bound;
}

// The same; an unknown tensor is scanned, such as the moments of a resumed run. Memory that others may write at any
// time stays unknown.
std::optional<Bound> bound_or_scan(const at::Tensor& tensor) {
  if (const auto known = known_bound(tensor)) return known;
  ThreadState::current().bound_source().known_or_scanned(tensor);
  return known_bound(tensor);
}

// The known bounds before a step.
struct BoundsBefore {
  AdamBounds bounds;
  bool is_second_moment_nonnegative;  // unknown after a fused kernel has written it
  bool is_history_missing;            // for a large parameter: the history of its moments was not observed
};

// Returns nothing if a bound is not known.
std::optional<BoundsBefore> bounds_before(const AdamTensors& tensors) {
  std::optional<RecordedUpdate> on_device;
  if (!tensors.parameter.is_cpu()) on_device.emplace(tensors);
  const auto bound_of = [&](const at::Tensor& one) {
    return on_device ? bound_in(on_device->of(one)) : bound_or_scan(one);
  };
  const auto parameter = bound_of(tensors.parameter), gradient = bound_of(tensors.gradient);
  const auto first = bound_of(tensors.first_moment), second = bound_of(tensors.second_moment);
  if (!parameter || !gradient || !first || !second) return std::nullopt;
  AdamBounds bounds{parameter->max_abs, gradient->max_abs, first->max_abs, second->max_abs};
  if (tensors.largest_second_moment != nullptr) {
    const auto largest = bound_or_scan(*tensors.largest_second_moment);
    if (!largest) return std::nullopt;
    bounds.largest_second_moment = largest->max_abs;
  }
  ThreadState& thread = ThreadState::current();
  const bool is_small = tensors.parameter.numel() <= kSmall;
  if (!is_small) {
    const BoundSource source = thread.bound_source(on_device ? &*on_device : nullptr);
    bounds.history = thread.moments().history_of(tensors.first_moment, tensors.second_moment, source);
  }
  return BoundsBefore{bounds, second->nonnegative, !is_small && !std::isfinite(bounds.history.ratio)};
}

// Scans a tensor that is known to be finite for a tighter bound: the exact one on the host.
std::optional<Bound> tightened_bound(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) return tighten_on_device(tensor) ? bound_in(recorded_knowledge(tensor)) : std::nullopt;
  return ThreadState::current().bound_source().tighten(tensor) ? known_bound(tensor) : std::nullopt;
}

std::optional<MomentHistory> read_history(const AdamTensors& tensors, const DtypeRange& range) {
  Counters& counters = ThreadState::current().counters();
  const auto bytes = static_cast<int64_t>(tensors.first_moment.nbytes() + tensors.second_moment.nbytes());
  counters.bytes.add(bytes);
  counters.bytes_scanned_unknown.add(bytes);
  return history_shown_by(tensors.first_moment, tensors.second_moment, range);
}

// Returns a number of steps that is stored in a tensor; -1 if it is not a number.
double number_of_steps(const at::Tensor& steps) {
  if (!is_dense_on_host(*steps.unsafeGetTensorImpl()) || steps.numel() != 1) return -1;
  if (steps.scalar_type() == c10::ScalarType::Float) return *steps.const_data_ptr<float>();
  if (steps.scalar_type() == c10::ScalarType::Double) return *steps.const_data_ptr<double>();
  return -1;
}

// Returns the bounds after a step that stays finite. Scans a tensor whose bound keeps the proof from succeeding.
std::optional<AdamBounds> prove(const AdamTensors& tensors, const AdamHyperparameters& hyperparameters,
                                const BoundsBefore& known) {
  AdamBounds before = known.bounds;
  const DtypeRange range = range_of(tensors.parameter.scalar_type());
  const double step = number_of_steps(tensors.steps) + 1;
  auto after = bounds_after_adam_step(hyperparameters, before, step, range);
  if (!after) {  // the bound of a gradient is often too loose to be squared
    const auto tighter = tightened_bound(tensors.gradient);
    if (!tighter) return std::nullopt;
    before.gradient = tighter->max_abs;
    after = bounds_after_adam_step(hyperparameters, before, step, range);
  }
  const bool is_on_host = tensors.parameter.is_cpu();
  const bool wants_history = known.is_history_missing && is_on_host;  // if it can be scanned
  if (!after || (known.is_second_moment_nonnegative && !wants_history)) return after;
  if (!is_on_host) return std::nullopt;
  const auto shown = read_history(tensors, range);
  if (!shown) return std::nullopt;
  before.history = *shown;
  return bounds_after_adam_step(hyperparameters, before, step, range);
}

}  // namespace

// Whether the written values are within their bounds. Scans parameter and moments.
bool ProvedStep::holds(const Update& update, Counters& counters) {
  const auto is_within = [&counters](const at::Tensor& written, double bound) {
    if (!written.defined()) return true;
    const ScanResult found = check_finite(written);
    counters.bytes.add(found.bytes);
    return found.skip != Skip::kNone || (found.finite && found.max_abs <= bound);
  };
  const AdamBounds& after = update.after;
  return is_within(update.parameter, factor_for_test * after.parameter) &&
         is_within(update.first_moment, after.first_moment) && is_within(update.second_moment, after.second_moment) &&
         is_within(update.largest_second_moment, after.largest_second_moment);
}

// Stops proving steps as a whole in this process.
void ProvedStep::disprove(const DetectionSession& session) {
  step_is_disproved = true;
  bound_cache().forget_bounds();
  session.count_internal_error("the bounds of an optimizer step",
                               "the bounds of a step of Adam are wrong: a parameter or moment is not within them. From "
                               "here on the operations of each step are checked. Please report this line");
}

void ProvedStep::falsify_for_test(double factor) {
  factor_for_test = factor;
  step_is_disproved = false;
}

ProvedStep& ProvedStep::current() { return step_of_thread; }

// Modes see the calls before the interceptor does, and may change them.
bool ProvedStep::is_possible(const DetectionSession& session) {
  return session.asks_for_finiteness_alone() && !session.scans_everything() && !step_is_disproved &&
         !devices().is_capturing() && !c10::impl::TorchDispatchModeTLS::any_modes_set() &&
         at::impl::PythonTorchFunctionTLS::stack_len() == 0 &&
         c10::impl::tls_is_dispatch_key_included(kInterceptorKey) &&
         !c10::impl::tls_is_dispatch_key_excluded(kInterceptorKey);
}

bool ProvedStep::add(const AdamTensors& tensors, const AdamHyperparameters& hyperparameters, int64_t results) {
  if (!are_simple(tensors)) return false;
  if (updates_.empty()) times_voided_ = devices().times_voided();
  const auto before = bounds_before(tensors);
  const auto after = before ? prove(tensors, hyperparameters, *before) : std::nullopt;
  if (!after) return false;
  const auto& [parameter, gradient, first_moment, second_moment, largest_second_moment, steps] = tensors;
  updates_.push_back({parameter, gradient, first_moment, second_moment,
                      largest_second_moment != nullptr ? *largest_second_moment : at::Tensor(), storage_of(steps),
                      results, before->bounds.parameter, *after});
  return true;
}

bool ProvedStep::try_start() {
  if (!has_separate_memory()) return false;
  devices().launch_all();  // of the tensors that the step will overwrite
  if (devices().has_to_prepare_writes()) devices().prepare_writes(written_);
  is_under_way_ = true;
  c10::impl::tls_set_dispatch_key_excluded(kInterceptorKey, true);
  return true;
}

// Whether no update uses memory that another one writes: a parameter may occur twice.
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
    return std::binary_search(written_.begin(), written_.end(), storage_of(update.gradient));
  });
}

void ProvedStep::finish(bool is_completed) noexcept {
  c10::impl::tls_set_dispatch_key_excluded(kInterceptorKey, false);
  is_under_way_ = false;
  ThreadState& thread = ThreadState::current();
  DetectionSession* const session = thread.session();
  const bool is_recorded =
      is_completed && session != nullptr && run_contained(*session, "recording an optimizer step", [&] {
        DeviceStep on_devices(thread, *session, times_voided_);
        for (const Update& update : updates_) record(update, thread, *session, on_devices);
        on_devices.finish();
      });
  if (!is_recorded) distrust_devices();
  updates_.clear();
}

// Events have no versions.
void ProvedStep::distrust_devices() const {
  if (!devices().in_use()) return;
  Devices::Lock locked(devices());
  for (const Update& update : updates_) {
    for (const at::Tensor* written : {&update.parameter, &update.first_moment, &update.second_moment})
      locked.journal().mark_stale(*written);
  }
}

// A tensor that is not recorded loses its bound, because its version has changed.
void ProvedStep::record(const Update& update, ThreadState& thread, const DetectionSession& session,
                        DeviceStep& on_devices) {
  const auto& [parameter, gradient, first_moment, second_moment, largest_second_moment, steps, results,
               parameter_before, after] = update;
  const bool is_small = parameter.numel() <= kSmall;
  const bool has_bound = !is_small && std::isfinite(after.history.ratio) &&
                         !thread.moments().has_drifted(parameter, parameter_before, after.parameter);
  Counters& counters = thread.counters();
  if (!parameter.is_cpu()) {
    on_devices.add(parameter, gradient, first_moment, second_moment, after, has_bound, !is_small);
    counters.count_proved(static_cast<int64_t>(parameter.nbytes()), results - DeviceStep::kResults);
    return;
  }
  bound_cache().record_written(first_moment, {after.first_moment}, &kUpdatesFirst);
  bound_cache().record_written(second_moment, {after.second_moment, true}, &kUpdatesSecond);
  if (largest_second_moment.defined())
    bound_cache().record_written(largest_second_moment, {after.largest_second_moment, true}, &kUpdatesLargest);
  if (!is_small) thread.moments().record_history(first_moment, second_moment, after.history);
  const bool is_rescan = session.is_rescanned(thread.next_bounded_call(session.step()));
  if (is_rescan && !holds(update, counters)) return disprove(session);
  const ScanResult scanned = has_bound && !is_rescan ? ScanResult{.max_abs = after.parameter} : check_finite(parameter);
  if (scanned.finite) bound_cache().record_written(parameter, {scanned.max_abs}, &kUpdatesParameter);
  const int64_t proved = has_bound ? results : results - 1;
  counters.checked.add(results);
  counters.proved.add(proved);
  counters.bytes_proved.add(proved * static_cast<int64_t>(parameter.nbytes()));
  counters.bytes.add(scanned.bytes);
}

}  // namespace torchnan
