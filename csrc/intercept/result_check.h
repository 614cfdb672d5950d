// What one call writes: bounded before it runs, proved or read afterwards.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <torchnan/bounds.h>

#include "bounds/operand.h"
#include "check/tensor_check.h"
#include "intercept/op_plan.h"
#include "watch/thread_state.h"

namespace torchnan {

// In a healthy call it allocates nothing and takes no lock.
class ResultCheck {
 public:
  enum class Outcome : uint8_t {
    kPassedBy,  // integers, subclasses, meta tensors: nothing to judge
    kFinite,
    kMasked,  // finite, or -inf where a mask has put it; not read
    kNonFinite,
  };

  ResultCheck(const OpPlan& plan, ThreadState& thread, Watch& watch) : plan_(plan), thread_(thread), watch_(watch) {}

  // From what is known of the arguments, while they are as they are passed.
  void bound_results(c10::ArrayRef<Operand> arguments);

  // Judges output number `output` and notes what is known of it. `masks_are_known`: somebody can tell where the -inf of
  // the arguments come from.
  Outcome judge(const at::Tensor& result, int64_t output, bool masks_are_known);

 private:
  static constexpr size_t kMostResults = 4;  // that a rule speaks of, lists aside

  bool is_worth_bounding(c10::ArrayRef<Operand> arguments) const;
  void apply_rule(c10::ArrayRef<Operand> arguments);
  Bound bound_at(size_t place) const;
  bool is_sampled();
  bool is_proved(const at::Tensor& result, const Bound& bound) const;
  Outcome pass_by(const at::Tensor& result, Skip reason);
  Outcome note_proved(const at::Tensor& result, const Bound& bound);
  Outcome read(const at::Tensor& result, size_t place);
  void record_claim(const at::Tensor& result, size_t place, const Verdict& verdict) const;

  const OpPlan& plan_;
  ThreadState& thread_;
  Watch& watch_;
  c10::SmallVector<Bound, kMostResults> bounds_;
};

}  // namespace torchnan
