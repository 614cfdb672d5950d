#include "intercept/host_results.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include "check/bounds/bound_audit.h"
#include "check/bounds/dtype_range.h"
#include "origin/current_call_site.h"
#include "check/bounds/written_spans.h"
#include "check/operators/for_each_tensor.h"
#include "check/scan/storage_of.h"
#include "check/scan/tensor_scan.h"
#include "origin/nonfinite_registry.h"
#include "detection/audited_claims.h"
#include "detection/error_containment.h"
#include "base/format.h"

namespace torchnan {
namespace {

constexpr double kUseful = 0x1p20;  // a bound that is tight enough
// A gradient is a sum of products of two results, and a step squares it: in float32, sums of 2^7 such products may be.
constexpr double kMaySquareProduct = 0x1p28;
constexpr size_t kMuchLarger = 4;  // scanning the arguments pays off if the result is this many times as large

bool takes_a_number(MomentStep step) {
  return step == MomentStep::kMultiply || step == MomentStep::kDivide || step == MomentStep::kAdd;
}

// Whether the values of a tensor, if it has any, lie in memory of the host.
bool is_in_memory(const at::Tensor& tensor) {
  return is_dense_on_host(*tensor.unsafeGetTensorImpl()) && storage_of(tensor)->data() != nullptr;
}

// Whether a bound proves that a result is finite.
bool is_within(const DtypeRange& range, const Bound& bound) {
  return with_rounding_margin(bound.max_abs, range) <= range.limit && bound.max_intermediate <= range.limit;
}

double largest_of(const Bound& bound) { return std::max(bound.max_abs, bound.max_intermediate); }

bool is_same_view(const at::Tensor& one, const at::Tensor& other) {
  if (one.is_same(other)) return true;
  return storage_of(one) == storage_of(other) && one.storage_offset() == other.storage_offset() &&
         one.sizes() == other.sizes() && one.strides() == other.strides();
}

// Whether an element of the lists reads memory that the call has already written for an earlier one. If so, nothing is
// known of either.
bool reads_written(const WrittenSpans& written, c10::ArrayRef<Operand> lists, size_t element) {
  return std::any_of(lists.begin(), lists.end(), [&](const Operand& list) {
    const at::Tensor* tensor = tensor_of(&list, element);
    return tensor != nullptr && written.may_overlap(*tensor);
  });
}

}  // namespace

// Whether the call writes an element of memory more than once, and so may read its own results.
bool HostResults::writes_twice(c10::ArrayRef<Operand> arguments) const {
  return std::any_of(plan_.mutated_arguments.begin(), plan_.mutated_arguments.end(), [&](const auto& mutated) {
    const size_t index = plan_.saved_arguments[mutated.saved_index];
    const at::Tensor* tensor = index < arguments.size() ? tensor_of(&arguments[index], 0) : nullptr;
    return tensor != nullptr && may_overlap_itself(*tensor);
  });
}

// Whether an argument shares memory with one that the call writes: the kernel may read it after it has written there.
// An elementwise operation may read the same view. PyTorch refuses most other overlaps, but not those that take long to
// find out.
bool HostResults::reads_its_results(c10::ArrayRef<Operand> arguments, size_t element) const {
  const bool is_on_lists = plan_.bounds.elementwise_in_lists, is_elementwise = plan_.pointwise || is_on_lists;
  const auto overlaps = [&](const at::Tensor& written, const at::Tensor& read) {
    return !(is_elementwise && is_same_view(written, read)) && may_overlap(written, read);
  };
  const auto is_read_from = [&](const Operand& argument, const at::Tensor& written) {
    if (is_on_lists) {
      const at::Tensor* const read = tensor_of(&argument, element);
      return read != nullptr && overlaps(written, *read);
    }
    bool is_read = false;
    for_each_tensor(argument, [&](const at::Tensor& read, int64_t) { is_read = is_read || overlaps(written, read); });
    return is_read;
  };
  return std::any_of(plan_.mutated_arguments.begin(), plan_.mutated_arguments.end(), [&](const auto& mutated) {
    const size_t index = plan_.saved_arguments[mutated.saved_index];
    const at::Tensor* written = index < arguments.size() ? tensor_of(&arguments[index], element) : nullptr;
    if (written == nullptr) return false;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (i != index && is_read_from(arguments[i], *written)) return true;
    }
    return false;
  });
}

void HostResults::bound_results(c10::ArrayRef<Operand> arguments, const ExternalBounds* elsewhere) {
  if (plan_.bounds.rule == nullptr || plan_.bounds.rule->is_withdrawn()) return;
  if (!is_worth_bounding(arguments, elsewhere != nullptr)) return;
  if (call_ < 0) call_ = thread_.next_bounded_call(session_.step());
  try {
    apply_rule(arguments, elsewhere);
  } catch (...) {
    bounds_.clear();
    run_contained(session_, "a bound rule",
                  [this] { count_failure(session_, format_text("the bound rule of {}", plan_.name)); });
  }
}

void HostResults::apply_rule(c10::ArrayRef<Operand> arguments, const ExternalBounds* elsewhere) {
  const BoundSource source = thread_.bound_source(elsewhere);
  const Rule& rule = *plan_.bounds.rule;
  const c10::ArrayRef<Operand> written_arguments = arguments;
  arguments = arguments.slice(0, arguments.size() - plan_.out_arguments);
  if (!plan_.bounds.elementwise_in_lists) {
    if (plan_.writes_in_place() && (writes_twice(written_arguments) || reads_its_results(written_arguments, 0))) return;
    const RuleArguments call(arguments, source);
    bounds_.resize(std::max(kMaxResults, plan_.checked_returns.size() + plan_.mutated_arguments.size()));
    dtypes_.push_back(call.dtype());
    terms_ = static_cast<double>(call.numel(0));
    rule(call, bounds_);
    if (plan_.writes_in_place()) test_before(written_arguments, call, bounds_, 0);
    follow_moments(call, bounds_[0]);
    follow_description(call);
    return;
  }
  bounds_.resize(arguments.empty() ? 0 : arguments[0].count);
  WrittenSpans& written = thread_.written_spans;
  if (plan_.writes_in_place()) written.begin(bounds_.size());
  for (size_t element = 0; element < bounds_.size(); ++element) {
    const at::Tensor* self = tensor_of(arguments.data(), element);
    if (plan_.writes_in_place() &&
        (reads_written(written, arguments, element) || reads_its_results(written_arguments, element)))
      return forget_bounds();
    // On a device, too: one launch scans all of a list.
    if (self != nullptr && self->numel() <= kSmall && !bound_audit().enabled()) {
      dtypes_.push_back(self->scalar_type());
    } else {
      const RuleArguments call(arguments, source, element);
      dtypes_.push_back(call.dtype());
      const std::span<Bound> bound(&bounds_[element], 1);
      rule(call, bound);
      if (plan_.writes_in_place()) test_before(written_arguments, call, bound, element);
      follow_moments(call, bounds_[element]);
    }
    if (plan_.writes_in_place() && self != nullptr) written.add(*self);
  }
}

// Claims are in the order of the dtypes.
void HostResults::follow_moments(const RuleArguments& call, Bound& bound) {
  const MomentStep step = plan_.bounds.moment_step;
  if (step == MomentStep::kNone) return;
  if (takes_a_number(step)) {
    const at::Tensor* const other = call.tensor(1);
    const bool is_number = other == nullptr || other->numel() <= 1;
    if (!is_number && (step != MomentStep::kMultiply || !call.same(0, 1))) return;
  }
  if (step != MomentStep::kQuotient) {
    claims_.resize(dtypes_.size());
    claims_.back() = thread_.moments().follow(step, call);
  } else if (plan_.writes_in_place() && bound.known()) {
    if (thread_.moments().has_drifted(*call.tensor(0), call.max_abs(0), bound.max_abs)) bound = Bound();
  }
}

void HostResults::follow_description(const RuleArguments& call) {
  c10::SmallVector<uint64_t, 2> stamps;
  for (size_t i = 0; i < plan_.bounds.described; ++i) {
    const at::Tensor* tensor = call.tensor(i);
    if (tensor == nullptr || !tensor->is_cpu()) return;
    stamps.push_back(thread_.moments().stamp(*tensor, call.source()));
  }
  if (!stamps.empty()) description_ = BoundSource::stamp_of_description(plan_.name, stamps);
}

// Whether a bound is so large that few results computed from it would stay in range.
bool HostResults::is_loose(const at::Tensor& result, size_t output) const {
  const double limit = limit_at(result, output), most = largest_of(bounds_[output]);
  return limit > 0 && !(most * most <= limit);
}

void HostResults::tighten(c10::ArrayRef<Operand> arguments, c10::ArrayRef<const at::Tensor*> results) {
  if (bounds_.empty() || plan_.writes_in_place() || session_.scans_everything()) return;
  size_t written = 0;
  for (size_t i = 0; i < std::min(results.size(), bounds_.size()); ++i) {
    const bool is_scanned_anyway = !results[i]->defined() || results[i]->numel() <= kSmall;
    if (!is_scanned_anyway && is_loose(*results[i], i)) written += results[i]->nbytes();
  }
  if (written == 0) return;
  size_t to_read = 0;
  c10::SmallVector<const at::Tensor*, 4> loose;
  for (const Operand& argument : arguments) {
    const bool is_tensor = argument.kind == Operand::Kind::kTensor;
    if (!is_tensor || !BoundSource::may_tighten(*argument.tensor, kUseful)) continue;
    loose.push_back(argument.tensor);
    to_read += argument.tensor->nbytes();
  }
  if (loose.empty() || kMuchLarger * to_read > written) return;
  forget_bounds();
  const BoundSource source = thread_.bound_source();
  for (const at::Tensor* argument : loose) {
    if (!source.tighten(*argument)) return;  // then the result is scanned
  }
  bound_results(arguments, nullptr);
}

// Rules are for plain tensors: the sizes of others do not describe their memory, and a view like z.conj().imag has the
// opposite signs of its memory. Small tensors on the host are cheaper to scan than to bound, unless an audit records
// every claim of a rule. On a device, each scan may be a launch, but one launch scans all of a list. A number that the
// host cannot read, such as the first gradient, is also worth a bound, because large tensors are computed from it.
bool HostResults::is_worth_bounding(c10::ArrayRef<Operand> arguments, bool is_elsewhere) const {
  const bool is_on_lists = plan_.bounds.elementwise_in_lists;
  const bool may_be_launched = is_elsewhere && !is_on_lists;
  bool all_are_plain = true;
  bool any_is_large = bound_audit().enabled();
  const auto look_at = [&](const at::Tensor& tensor, int64_t) {
    all_are_plain = all_are_plain && is_plain(tensor) && !tensor.is_neg();
    if (!all_are_plain) return;  // its sizes may be symbols
    const int64_t elements = tensor.unsafeGetTensorImpl()->numel();
    any_is_large |= elements > kSmall || (may_be_launched && (elements == 1 || !tensor.is_cpu()));
  };
  for (const Operand& argument : arguments) {
    if (argument.kind == Operand::Kind::kTensor) {
      look_at(*argument.tensor, -1);
    } else if (argument.kind == Operand::Kind::kValues) {
      for_each_tensor(argument, look_at);
      any_is_large |= !is_on_lists;  // small parts add up
    }
    if (!all_are_plain) return false;
  }
  return any_is_large;
}

Outcome HostResults::check(const at::Tensor& result, int64_t output, bool masks_are_known) {
  if (plan_.handling == OpPlan::Handling::kAllocate) return record_allocation(result);
  const Prediction known = predict(result, output);
  const bool is_proved = known.is_proved && (masks_are_known || !known.bound.masked);
  if (!is_proved || known.is_rescanned) return scan(result, static_cast<size_t>(output), is_proved);
  const Skip reason = is_in_memory(result) ? Skip::kNone : reason_to_skip(result);
  if (reason != Skip::kNone) return skip(result, reason);
  return record_proved(result, static_cast<size_t>(output), known.bound);
}

Prediction HostResults::predict(const at::Tensor& result, int64_t output) {
  if (bounds_.empty()) return {};
  const auto index = static_cast<size_t>(output);
  const Bound bound = bound_at(index);
  const DtypeRange range = range_at(result, index);
  const double max_abs = with_rounding_margin(bound.max_abs, range);
  const bool is_within_range = is_within(range, bound) && is_plain(result);
  Prediction known{.bound = {is_within_range ? max_abs : RuleArguments::kUnknown, bound.nonnegative, bound.masked},
                   .claim = claim_at(index)};
  const bool is_small = result.numel() <= kSmall;
  known.is_proved = is_within_range && (!is_small || (!result.is_cpu() && saves_a_launch(max_abs)));
  // Rules are tested by large results: a small one is often computed from those, and would be blamed for their rules.
  known.is_rescanned = known.is_proved && !is_small &&
                       (plan_.writes_in_place() ? is_tested_in_place(index)
                                                : is_due(range.limit, index) && is_chosen(range.limit, index));
  return known;
}

// Whether the proof of a large result may be tested: few are.
bool HostResults::is_due(double limit, size_t output) const {
  return session_.is_rescanned(call_ + static_cast<int64_t>(output)) ||
         is_near_limit(largest_of(bounds_[output]), limit);
}

// Whether the proof of a result that is due is tested by a scan. Decided once for each result.
bool HostResults::is_chosen(double limit, size_t output) const {
  const int64_t place = call_ + static_cast<int64_t>(output);
  const bool has_turn = session_.is_rescanned(place);
  if (session_.options().rescan_every <= 1) return has_turn;
  return choose_for_audit({plan_.index, largest_of(bounds_[output]), limit, place, has_turn, session_.is_first_step()});
}

// Decides whether the proof of a result in place is tested. If so, the arguments that it builds on and that the call
// overwrites are scanned first: their memory may have been written outside of PyTorch.
void HostResults::test_before(c10::ArrayRef<Operand> arguments, const RuleArguments& call, std::span<Bound> bounds,
                              size_t output) {
  const size_t index = plan_.saved_arguments[plan_.mutated_arguments[0].saved_index];
  const at::Tensor* written = index < arguments.size() ? tensor_of(&arguments[index], output) : nullptr;
  if (written == nullptr || written->numel() <= kSmall) return;
  const double limit = limit_at(*written, output);
  if (!is_due(limit, output) || !is_within(range_at(*written, output), bounds_[output])) return;
  if (!is_chosen(limit, output)) return;
  tested_.push_back(output);
  if (!reread(arguments, output)) return;
  std::fill(bounds.begin(), bounds.end(), Bound());
  (*plan_.bounds.rule)(call, bounds);
}

// Whether the proof of a result in place is tested. Of several results, the first may be tested out of turn.
bool HostResults::is_tested_in_place(size_t output) const {
  if (!tested_.empty() && std::find(tested_.begin(), tested_.end(), output) != tested_.end()) return true;
  return !plan_.bounds.elementwise_in_lists && output > 0 &&
         session_.is_rescanned(call_ + static_cast<int64_t>(output));
}

// Whether a bound is worth more than the scan of a small result on a device. The scan starts the bound anew, and in a
// forward pass it waits for others. In a backward pass it would be a launch of its own, and most small results are
// gradients, which nothing reads but the optimizer.
bool HostResults::saves_a_launch(double max_abs) const {
  if (session_.scans_everything() || session_.is_first_step()) return false;
  return max_abs <= kMaySquareProduct || running_node() != nullptr;
}

Outcome HostResults::skip(const at::Tensor& result, Skip reason) {
  thread_.counters().count_skipped(reason);
  if (plan_.writes_in_place() && reason == Skip::kNotFloating) {
    bound_cache().mark_written_unseen(result);  // the memory may be read as floating-point numbers
  } else if (plan_.writes_in_place()) {
    bound_cache().mark_stale(result);
  }
  return Outcome::kSkipped;
}

Outcome HostResults::record_allocation(const at::Tensor& result) {
  if (plan_.returns_allocation) {
    bound_cache().record_uninitialized(result, runtime().current_stack_id(), &plan_.name);
  } else {
    bound_cache().forget(result);
  }
  return Outcome::kSkipped;
}

const Moments::Claim* HostResults::claim_at(size_t output) const {
  const bool is_claim = output < claims_.size() && claims_[output].form != Moments::Form::kNothing;
  return is_claim ? &claims_[output] : nullptr;
}

Bound HostResults::bound_at(size_t output) const { return output < bounds_.size() ? bounds_[output] : Bound(); }

double HostResults::limit_at(const at::Tensor& result, size_t output) const {
  const double stored = range_of(result.scalar_type()).limit;
  if (dtypes_.empty()) return stored;
  return std::min(stored, range_of(dtypes_[std::min(output, dtypes_.size() - 1)]).limit);
}

// A result that is computed in one dtype and stored in another must fit into both. A sum rounds each of its terms to
// the other dtype before it adds them: for subnormal numbers each rounding may double a term, and a relative margin is
// too small.
DtypeRange HostResults::range_at(const at::Tensor& result, size_t output) const {
  const c10::ScalarType stored = result.scalar_type();
  if (dtypes_.empty()) return range_of(stored);
  const c10::ScalarType computed = dtypes_[std::min(output, dtypes_.size() - 1)];
  if (computed == stored) return range_of(stored);
  DtypeRange range = narrower(range_of(computed), range_of(stored));
  range.tiny *= 1 + range.unit * terms_;
  return range;
}

// Scans the arguments that the call overwrites. Returns whether one is not within its bound, which then ends.
bool HostResults::reread(c10::ArrayRef<Operand> arguments, size_t element) const {
  bool is_any_beyond = false;
  for (const OpPlan::MutatedArgument& mutated : plan_.mutated_arguments) {
    const size_t index = plan_.saved_arguments[mutated.saved_index];
    const at::Tensor* tensor = index < arguments.size() ? tensor_of(&arguments[index], element) : nullptr;
    if (tensor == nullptr || !mutated.reads_previous_value || !tensor->is_cpu() || !bound_cache().is_finite(*tensor))
      continue;
    const ScanResult found = check_finite(*tensor);
    thread_.counters().bytes.add(found.bytes);
    if (found.finite && found.max_abs <= bound_cache().find(*tensor).bound.max_abs) continue;
    bound_cache().mark_stale(*tensor);
    is_any_beyond = true;
  }
  return is_any_beyond;
}

Outcome HostResults::record_proved(const at::Tensor& result, size_t output, const Bound& proof) {
  thread_.counters().count_proved(static_cast<int64_t>(result.nbytes()));
  record_finite(result, output, proof);
  record_magnitude(result, proof.max_abs, false);
  if (proof.masked) return Outcome::kFiniteOrMasked;
  if (nonfinite_registry().in_use() && plan_.writes_in_place()) nonfinite_registry().settle(result);
  return Outcome::kFinite;
}

void HostResults::record_finite(const at::Tensor& result, size_t output, const Bound& bound) {
  record_bound(thread_, plan_, result, bound);
  if (output < claims_.size()) thread_.moments().record(result, claims_[output]);
  const bool describes_arguments = description_ != 0 && storage_of(result) != nullptr;
  if (describes_arguments && covers_whole_storage(result, *storage_of(result)))
    bound_cache().stamp(result, description_);
}

// Records only results of the forward pass: a backward node has its call site from there, and gradients have a
// different scale.
void HostResults::record_headroom(const at::Tensor& result, double max_abs, bool is_measured) {
  if (!HeadroomTable::covers(result.scalar_type()) || torch::autograd::get_current_graph_task_id() != -1) return;
  if (site_ == 0) site_ = runtime().current_stack_id();
  session_.headroom()->record({&plan_, site_, result.scalar_type(), c10::GradMode::is_enabled()}, max_abs, is_measured);
}

void HostResults::record_bound_sample(const at::Tensor& result, size_t output, const ScanResult& verdict) const {
  const Bound& bound = bounds_[output];
  if (bound.masked) return;
  const DtypeRange range = range_at(result, output);
  const bool is_claim = bound.max_intermediate <= range.limit;
  const auto smallest = smallest_of(result);
  bound_audit().add({plan_.name, static_cast<int64_t>(output),
                     is_claim ? with_rounding_margin(bound.max_abs, range) : RuleArguments::kUnknown,
                     verdict.finite ? verdict.max_abs : RuleArguments::kUnknown, range.limit, bound.nonnegative,
                     smallest ? smallest->value : -RuleArguments::kUnknown});
}

// Whether the rule bounds a result.
bool HostResults::has_claim(const at::Tensor& result, size_t output) const {
  if (output >= bounds_.size() || bounds_[output].masked) return false;
  const DtypeRange range = range_at(result, output);
  const Bound& bound = bounds_[output];
  return is_within(range, bound);
}

void HostResults::compare_with_bound(const at::Tensor& result, size_t output, const ScanResult& found, bool is_rescan) {
  if (disproof_ || !has_claim(result, output) || bound_audit().enabled()) return;  // the audit records every claim
  const double bound = with_rounding_margin(bounds_[output].max_abs, range_at(result, output));
  const bool is_negative = is_rescan && found.finite && bounds_[output].nonnegative && has_negative(result);
  if (found.finite && found.max_abs <= bound && !is_negative) return;
  disproof_ = {result, output, bound, found, is_negative};
}

Outcome HostResults::scan(const at::Tensor& result, size_t output, bool is_rescan) {
  const ScanResult verdict = check_finite(result);
  if (verdict.skip != Skip::kNone) return skip(result, verdict.skip);
  Counters& counters = thread_.counters();
  counters.count_scanned(verdict.bytes);
  if (!bounds_.empty()) counters.bytes_rescanned.add(verdict.bytes);
  if (bound_audit().enabled() && output < bounds_.size()) record_bound_sample(result, output, verdict);
  compare_with_bound(result, output, verdict, is_rescan);
  if (!verdict.finite) {
    counters.nonfinite.add(1);
    if (bound_cache().pending_collective(scannable_values(result)) == nullptr)
      bound_cache().forget(scannable_values(result));
    return Outcome::kNonFinite;
  }
  record_finite(result, output, {verdict.max_abs, !disproof_ && bound_at(output).nonnegative});
  // a dense tensor may share the values of a sparse one
  if (plan_.writes_in_place() && storage_of(result) == nullptr) bound_cache().mark_stale(scannable_values(result));
  record_magnitude(result, verdict.max_abs, true);
  if (nonfinite_registry().in_use() && plan_.writes_in_place()) nonfinite_registry().settle(scannable_values(result));
  return Outcome::kFinite;
}

}  // namespace torchnan
