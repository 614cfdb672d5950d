#include "origin/attribution.h"

#include <set>

#include "check/blame.h"
#include "check/tensor_check.h"
#include "origin/harm.h"
#include "origin/roots.h"
#include "origin/site_here.h"
#include "origin/unused_results.h"

namespace torchnan {
namespace {

// Of the arguments (of the chosen ones), the one whose cause is to be told.
const BadArgument* first_among(c10::ArrayRef<BadArgument> arguments, const std::vector<bool>* chosen) {
  const BadArgument* first = nullptr;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (chosen != nullptr && !(*chosen)[i]) continue;
    if (first == nullptr || arguments[i].record->root()->outranks(*first->record->root())) first = &arguments[i];
  }
  return first;
}

// Why the results of one call are bad.
class Inquiry {
 public:
  Inquiry(const CallFacts& call, c10::SmallVectorImpl<BadArgument>& bad_arguments)
      : call_(call), bad_arguments_(bad_arguments), constants_(kinds_of_numbers(call)) {
    if (!call.plan.makes_constants) find_external_arguments();
    for (const BadArgument& argument : bad_arguments_) inherited_ |= argument.kinds;
  }

  Lineage::RecordPtr record_of(const Result& result) {
    const BadArgument* culprit = nullptr;
    const bool own =
        bad_arguments_.empty() ? !call_.plan.makes_constants && !explained(result.kinds) : is_own(result, culprit);
    if (own) return origin(result);
    if (culprit != nullptr) return extended(*culprit, result);
    return std::make_shared<Record>(constant_root(call_, result.tensor));
  }

 private:
  // Whether kinds like these were among what the call was given.
  bool explained(Kinds kinds) const {
    const Kinds given = inherited_ | constants_;
    if (kinds.nan() && !given.nan()) return false;
    return !kinds.inf() || given.inf();
  }

  // Whether the call itself is the origin of a result, though arguments were bad; if not, which of them is at fault.
  bool is_own(const Result& result, const BadArgument*& culprit) const {
    culprit = first_among(bad_arguments_, nullptr);
    if (needs_a_closer_look(result)) return is_own_by_element(result, culprit);
    return culprit->record->root()->deliberate() && !explained(result.kinds);
  }

  // Where several causes meet, or where something meant meets something that may not be. Not for every mask: one that
  // shows up in a result as what it was is nothing new.
  bool needs_a_closer_look(const Result& result) const {
    if (!call_.plan.pointwise || call_.plan.writes_in_place() || result.tensor.numel() == 0) return false;
    std::set<const Root*> causes;
    for (const BadArgument& argument : bad_arguments_) causes.insert(argument.record->root().get());
    if (causes.size() > 1) return true;
    const bool deliberate = bad_arguments_.front().record->root()->deliberate();
    const bool new_sign = result.kinds.without(inherited_ | constants_ | Kinds::of_nan()).any();
    return deliberate && (result.kinds.nan() || new_sign);
  }

  bool is_own_by_element(const Result& result, const BadArgument*& culprit) const {
    std::vector<Suspect> suspects;
    for (const BadArgument& argument : bad_arguments_) {
      suspects.push_back({argument.tensor, !argument.record->root()->deliberate()});
    }
    const Blame verdict = blame(result.tensor, suspects);
    const BadArgument* inherited_from = first_among(bad_arguments_, &verdict.inherited);
    const bool accident = inherited_from != nullptr && !inherited_from->record->root()->deliberate();
    if (verdict.own && !accident && !constants_.any()) return true;
    if (inherited_from != nullptr) culprit = inherited_from;
    return culprit->record->root()->deliberate() && !explained(result.kinds);
  }

  Lineage::RecordPtr origin(const Result& result) {
    if (made_ == nullptr) made_ = operation_root(call_, result.tensor, result.output);
    return std::make_shared<Record>(made_);
  }

  Lineage::RecordPtr extended(const BadArgument& culprit, const Result& result) {
    Root& root = *culprit.record->root();
    judge_factor(root, result.kinds);
    const bool is_entry = root.source != Root::Source::kOperation && culprit.record->first_computation() == nullptr;
    if (is_entry && (root.kinds.nan() || !root.deliberate())) note_entry(call_, culprit.tensor, root);
    return culprit.record->extended({&call_.plan, site().live}, call_.plan.moves_values);
  }

  // The formula of a node is often gradient times slope. A slope that is infinite where the gradient is zero makes a
  // NaN of it, and that is what the node makes: the slope is no gradient yet.
  void judge_factor(Root& root, Kinds kinds) {
    const bool same_run = root.site.node_run != 0 && root.site.node_run == site().node_run;
    if (same_run && call_.plan.pointwise && kinds.nan() && !root.kinds.nan()) root.facts.kind = Kind::kNaN;
  }

  // Bad arguments that nobody saw being made.
  void find_external_arguments() {
    for (const TensorArgument& argument : tensor_arguments(call_)) {
      if (argument.overwritten) continue;  // looked at before the call
      const at::Tensor tensor = readable(argument.tensor);
      if (!tensor.defined() || is_known(tensor)) continue;
      const Kinds kinds = kinds_of(tensor);
      if (kinds.any()) bad_arguments_.push_back({tensor, kinds, record_of_argument(call_, tensor, kinds)});
    }
  }

  bool is_known(const at::Tensor& tensor) const {
    for (const BadArgument& argument : bad_arguments_) {
      if (argument.tensor.unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl()) return true;
    }
    return false;
  }

  const Site& site() {
    if (!site_) site_ = site_here(call_.watch, call_.thread);
    return *site_;
  }

  const CallFacts& call_;
  c10::SmallVectorImpl<BadArgument>& bad_arguments_;
  Kinds inherited_;             // from tensors
  const Kinds constants_;       // from numbers
  std::shared_ptr<Root> made_;  // shared by all outputs
  std::optional<Site> site_;
};

}  // namespace

void attribute(const CallFacts& call, c10::SmallVectorImpl<BadArgument>& bad_arguments, c10::ArrayRef<Result> results) {
  Inquiry inquiry(call, bad_arguments);
  for (const BadArgument& argument : bad_arguments) argument.record->root()->used = true;
  for (const Result& result : results) {
    const Lineage::RecordPtr record = inquiry.record_of(result);
    lineage().remember(result.tensor, record);
    if (record->steps().empty() && !record->root()->deliberate()) note_unused(call.watch, record);
    judge_result(call, result, record);
  }
}

void expect(const CallFacts& call, c10::ArrayRef<BadArgument> bad_arguments, const at::Tensor& result) {
  const BadArgument* culprit = first_among(bad_arguments, nullptr);
  if (culprit == nullptr || !readable(result).defined()) return;
  for (const BadArgument& argument : bad_arguments) argument.record->root()->used = true;
  const Step step{&call.plan, site_here(call.watch, call.thread).live};
  lineage().remember(result, culprit->record->extended(step, call.plan.moves_values));
}

}  // namespace torchnan
