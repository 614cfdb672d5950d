// Decides which results of a call on the host are finite: bounds them before it runs, proves or scans them afterwards.
#pragma once

#include <optional>
#include <span>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include <torchnan/bounds.h>

#include "check/bounds/bound_cache.h"
#include "check/bounds/bound_source.h"
#include "check/bounds/dtype_range.h"
#include "check/bounds/operand.h"
#include "check/bounds/prediction.h"
#include "check/scan/tensor_scan.h"
#include "base/runtime.h"
#include "check/operators/op_plan.h"
#include "detection/thread_state.h"
#include "origin/attribution.h"

namespace torchnan {

constexpr int64_t kSmall = 4096;  // a tensor with this many elements is as cheap to scan as to bound

// How a result was checked.
enum class Outcome : uint8_t {
  kSkipped,   // integers, subclasses, meta tensors, unwritten memory: there is nothing to check
  kDeferred,  // on a device, which has not computed it yet
  kFinite,
  kFiniteOrMasked,  // finite, or -inf from a mask; not scanned
  kNonFinite,
};

// Records the bound of a finite result, for the version that the result has once the call is over.
inline void record_bound(ThreadState& thread, const OpPlan& plan, const at::Tensor& result, const Bound& bound) {
  const bool awaits_version = plan.may_await_versions() && thread.awaited_versions.add(result);
  bound_cache().record_written(result, bound, &plan.name, awaits_version);
}

// Records what finite results say about an argument: a square root is finite only where no element is below zero.
inline void record_proved_sign(const OpPlan& plan, const at::Tensor& argument) {
  if (plan.proves_nonnegative_input) bound_cache().record_nonnegative(argument);
}

// The results of a call without devices. A call chooses once between this and DeviceResults, which has the same
// interface. In a healthy call it allocates nothing and takes no lock.
class HostResults {
 public:
  static constexpr bool kOnDevices = false;

  // `site` is the call site, 0 if it was not looked up.
  HostResults(const OpPlan& plan, ThreadState& thread, DetectionSession& session, SiteId site)
      : plan_(plan), thread_(thread), session_(session), site_(site) {}

  // Whether prepare() uses the arguments.
  bool needs_arguments() const { return plan_.bounds.rule != nullptr; }

  // Bounds the results from the arguments, before the call changes them.
  void prepare(c10::ArrayRef<Operand> arguments) { bound_results(arguments, nullptr); }
  void bound_results(c10::ArrayRef<Operand> arguments, const ExternalBounds* elsewhere);

  // Bounds the results once more after the call has run, if their bounds are too loose and much smaller arguments can
  // be scanned instead.
  void tighten(c10::ArrayRef<Operand> arguments, c10::ArrayRef<const at::Tensor*> results);

  // Returns the known facts about output number `output`, which was not scanned.
  Prediction predict(const at::Tensor& result, int64_t output);

  void forget_bounds() {
    bounds_.clear();
    dtypes_.clear();
    claims_.clear();
    tested_.clear();
  }

  // A scanned value that a bound excludes.
  struct Disproof {
    at::Tensor result;
    size_t output = 0;
    double bound = 0;
    ScanResult found;
    bool is_negative = false;  // found below zero where the rule excludes it
  };
  // The first of the results checked so far that disproves its bound.
  const std::optional<Disproof>& disproof() const { return disproof_; }

  // Checks output number `output` and records its bound. `masks_are_known`: the arguments' -inf have a provenance.
  Outcome check(const at::Tensor& result, int64_t output, bool masks_are_known);

  // Forgets a tensor that a failed call may have written.
  void forget(const at::Tensor& tensor) { bound_cache().forget(tensor); }

  // Adds arguments that only devices know to be bad: there are none.
  using TensorAt = c10::function_ref<at::Tensor(size_t argument, int64_t element)>;
  void find_bad_arguments(TensorAt, c10::SmallVectorImpl<BadArgument>&) {}

  // Ends the call.
  void finish() {}

 private:
  static constexpr size_t kMaxResults = 4;  // of a rule, except for lists

  bool is_worth_bounding(c10::ArrayRef<Operand> arguments, bool is_elsewhere) const;
  bool saves_a_launch(double max_abs) const;
  bool writes_twice(c10::ArrayRef<Operand> arguments) const;
  bool reads_its_results(c10::ArrayRef<Operand> arguments, size_t element) const;
  void apply_rule(c10::ArrayRef<Operand> arguments, const ExternalBounds* elsewhere);
  void follow_moments(const RuleArguments& call, Bound& bound);
  void follow_description(const RuleArguments& call);
  void record_finite(const at::Tensor& result, size_t output, const Bound& bound);
  Bound bound_at(size_t output) const;
  const Moments::Claim* claim_at(size_t output) const;
  bool reread(c10::ArrayRef<Operand> arguments, size_t element) const;
  bool is_tested_in_place(size_t output) const;
  bool is_due(double limit, size_t output) const;
  bool is_chosen(double limit, size_t output) const;
  double limit_at(const at::Tensor& result, size_t output) const;
  void test_before(c10::ArrayRef<Operand> arguments, const RuleArguments& call, std::span<Bound> bounds, size_t output);
  bool has_claim(const at::Tensor& result, size_t output) const;
  DtypeRange range_at(const at::Tensor& result, size_t output) const;
  Outcome skip(const at::Tensor& result, Skip reason);
  Outcome record_allocation(const at::Tensor& result);
  Outcome record_proved(const at::Tensor& result, size_t output, const Bound& proof);
  bool is_loose(const at::Tensor& result, size_t output) const;
  void compare_with_bound(const at::Tensor& result, size_t output, const ScanResult& found, bool is_rescan);
  Outcome scan(const at::Tensor& result, size_t output, bool is_rescan);
  void record_magnitude(const at::Tensor& result, double max_abs, bool is_measured) {
    if (session_.headroom() != nullptr) record_headroom(result, max_abs, is_measured);
  }
  void record_headroom(const at::Tensor& result, double max_abs, bool is_measured);
  void record_bound_sample(const at::Tensor& result, size_t output, const ScanResult& verdict) const;

  const OpPlan& plan_;
  ThreadState& thread_;
  DetectionSession& session_;
  SiteId site_;
  c10::SmallVector<Bound, kMaxResults> bounds_;
  // The dtype of the computation: one for all results, or one for each element of the lists.
  c10::SmallVector<c10::ScalarType, 64> dtypes_;
  int64_t call_ = -1;  // how many calls were bounded before it in this step
  // The results of a call in place whose proofs are tested: that is decided before the call overwrites its arguments.
  c10::SmallVector<size_t, 2> tested_;
  uint64_t description_ = 0;  // the stamp of results that describe the arguments; 0 for none
  std::optional<Disproof> disproof_;
  double terms_ = 0;  // how many elements the operation may add up, except for lists
  // about the results, if the operator takes part in an optimizer's history
  c10::SmallVector<Moments::Claim, 1> claims_;
};

}  // namespace torchnan
