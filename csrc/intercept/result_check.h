// What one call writes: bounded before it runs, proved or read afterwards.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <torchnan/bounds.h>

#include "bounds/bound_source.h"
#include "bounds/operand.h"
#include "scan/tensor_scan.h"
#include "host/host_runtime.h"
#include "operators/op_plan.h"
#include "detection/thread_state.h"

namespace torchnan {

// In a healthy call it allocates nothing and takes no lock.
class ResultCheck {
 public:
  enum class Outcome : uint8_t {
    kSkipped,  // integers, subclasses, meta tensors: nothing to judge
    kFinite,
    kFiniteOrMasked,  // finite, or -inf where a mask has put it; not read
    kNonFinite,
  };

  ResultCheck(const OpPlan& plan, ThreadState& thread, DetectionSession& session)
      : plan_(plan), thread_(thread), session_(session) {}

  // Where the call is, if that is known; else it is found out by whoever needs it.
  void note_site(SiteId site) { site_ = site; }

  // From what is known of the arguments, while they are as they are passed.
  void bound_results(c10::ArrayRef<Operand> arguments, const ExternalBounds* elsewhere);

  // What is known of output number `output` without looking, if that is enough to know that it is finite.
  std::optional<Bound> proof_of(const at::Tensor& result, int64_t output);

  // Nothing is known without looking.
  void forget_bounds() { bounds_.clear(); }

  // Judges output number `output` and notes what is known of it. `masks_are_known`: somebody can tell where the -inf of
  // the arguments come from.
  Outcome judge(const at::Tensor& result, int64_t output, bool masks_are_known);

 private:
  static constexpr size_t kMostResults = 4;  // that a rule speaks of, lists aside

  bool is_worth_bounding(c10::ArrayRef<Operand> arguments) const;
  void apply_rule(c10::ArrayRef<Operand> arguments, const ExternalBounds* elsewhere);
  Bound bound_at(size_t place) const;
  bool is_sampled();
  bool is_proved(const at::Tensor& result, const Bound& bound) const;
  Outcome skip(const at::Tensor& result, Skip reason);
  Outcome note_proved(const at::Tensor& result, const Bound& proof);
  Outcome read(const at::Tensor& result, size_t place);
  void note_magnitude(const at::Tensor& result, double max_abs, bool is_measured) {
    if (session_.headroom() != nullptr) note_headroom(result, max_abs, is_measured);
  }
  void note_headroom(const at::Tensor& result, double max_abs, bool is_measured);
  void record_claim(const at::Tensor& result, size_t place, const ScanResult& verdict) const;

  const OpPlan& plan_;
  ThreadState& thread_;
  DetectionSession& session_;
  SiteId site_ = 0;
  c10::SmallVector<Bound, kMostResults> bounds_;
};

}  // namespace torchnan
