#include "origin/attribution.h"

#include <algorithm>
#include <set>

#include "check/tensor_check.h"
#include "origin/harm.h"
#include "origin/roots.h"
#include "origin/site_here.h"
#include "origin/unused_results.h"

namespace torchnan {
namespace {

// What can become of values of these kinds in an operation.
Kinds possible_kinds(Kinds given, const OpPlan& plan) {
  if (plan.moves_values) return given;
  return given.inf() ? Kinds::of_nan() | Kinds::of_inf() : given;
}

int64_t broadcast_factor(const at::Tensor& argument, const at::Tensor& result) {
  return argument.numel() == 0 ? 0 : result.numel() / argument.numel();
}

// Why the results of one call are bad.
class Inquiry {
 public:
  Inquiry(const CallFacts& call, c10::SmallVectorImpl<BadArgument>& bad_arguments)
      : call_(call), bad_arguments_(bad_arguments), constants_(kinds_of_numbers(call)) {
    if (!call.plan.makes_constants) find_external_arguments();
    for (const c10::IValue& value : call.kept) {
      if (value.isList()) list_size_ = std::max<int64_t>(list_size_, static_cast<int64_t>(value.toListRef().size()));
    }
  }

  Lineage::RecordPtr record_of(const Result& result) {
    concern(result);
    if (concerned_.empty()) return std::make_shared<Record>(cause_without_bad_arguments(result));
    std::vector<Cause> causes = needs_a_closer_look(result) ? by_element(result) : by_kind(result);
    // What is new has to be the call's own doing; if nothing is, then all that was given is at fault.
    auto record = std::make_shared<Record>(std::move(causes));
    const bool needs_more = record->is_deliberate() && !explained(result.kinds);
    return needs_more ? std::make_shared<Record>(own(result, result.kinds)) : record;
  }

 private:
  // Where lists are gone through together, a result is made of their elements at its place.
  void concern(const Result& result) {
    concerned_.clear();
    inherited_ = {};
    for (const BadArgument& argument : bad_arguments_) {
      const bool is_elsewhere = argument.element >= 0 && argument.element != result.output % list_size_;
      if (call_.plan.pairs_lists && is_elsewhere) continue;
      concerned_.push_back(&argument);
      inherited_ |= argument.kinds;
    }
  }

  // Whether kinds like these were among what the call was given.
  bool explained(Kinds kinds) const {
    const Kinds given = inherited_ | constants_;
    if (kinds.nan() && !given.nan()) return false;
    return !kinds.inf() || given.inf();
  }

  // Of finite tensors, or of numbers. An infinite number may be a mask; who computes with a NaN makes one.
  Cause cause_without_bad_arguments(const Result& result) {
    const bool is_constant = call_.plan.makes_constants || (explained(result.kinds) && !computes_with_nan());
    return is_constant ? Cause{constant_root(call_, result.tensor), result.kinds} : own(result, result.kinds);
  }

  bool computes_with_nan() const { return constants_.nan() && !call_.plan.moves_values; }

  // Whether each bad element of the result has to be asked for its cause: where several causes meet, where there is
  // something that was not given, or where there are more than the meant ones.
  bool needs_a_closer_look(const Result& result) const {
    if (!is_elementwise() || result.tensor.numel() == 0) return false;
    std::set<const Root*> causes;
    for (const BadArgument* argument : concerned_) {
      if (argument->overwritten && argument->before == nullptr) return false;
      for (const Cause& cause : argument->record->causes()) causes.insert(cause.root.get());
    }
    if (causes.size() > 1) return true;
    const Root& only = **causes.begin();
    const bool is_new = result.kinds.without(inherited_ | constants_ | Kinds::of_nan()).any();
    if (!only.deliberate()) return is_new;
    return is_new || result.kinds.nan() || (!constants_.any() && has_more_than_was_given(result));
  }

  bool is_elementwise() const {
    if (call_.plan.pointwise) return true;
    return call_.plan.elementwise_in_self && concerned_.size() == 1 && concerned_[0]->name == "self";
  }

  bool has_more_than_was_given(const Result& result) const {
    int64_t given = 0;
    for (const BadArgument* argument : concerned_) {
      given += argument->count * broadcast_factor(argument->tensor, result.tensor);
    }
    return counts_of(result.tensor).all() > given;
  }

  std::vector<Cause> by_element(const Result& result) {
    std::vector<Suspect> suspects;
    for (const BadArgument* argument : concerned_) {
      suspects.push_back({argument->tensor, argument->before, !argument->record->first().root->deliberate()});
    }
    const Blame verdict = blame(result.tensor, suspects);
    std::vector<Cause> causes;
    for (size_t i = 0; i < concerned_.size(); ++i) {
      if (verdict.inherited[i].any()) hand_on(*concerned_[i], verdict.inherited[i], causes);
    }
    // Numbers like masked_fill's value are put where nothing bad was.
    if (verdict.own.any() && (!constants_.any() || computes_with_nan())) causes.push_back(own(result, verdict.own));
    return causes.empty() ? by_kind(result) : causes;
  }

  std::vector<Cause> by_kind(const Result& result) {
    std::vector<Cause> causes;
    for (const BadArgument* argument : concerned_) hand_on(*argument, result.kinds, causes);
    if (causes.empty()) {
      for (const BadArgument* argument : concerned_) hand_on_all(*argument, result.kinds, causes);
    }
    return causes;
  }

  // The causes of an argument that can have led to these kinds.
  void hand_on(const BadArgument& argument, Kinds there, std::vector<Cause>& causes) {
    for (const Cause& cause : argument.record->causes()) {
      const Kinds kinds = possible_kinds(cause.kinds, call_.plan) & there;
      if (!kinds.any() || is_absorbed(cause)) continue;
      causes.push_back(extended(argument, cause, kinds));
    }
  }

  void hand_on_all(const BadArgument& argument, Kinds there, std::vector<Cause>& causes) {
    for (const Cause& cause : argument.record->causes()) causes.push_back(extended(argument, cause, there));
  }

  // exp(-inf) is 0: if there is anything else, that has done it.
  bool is_absorbed(const Cause& cause) const {
    return call_.plan.absorbs_negative_infinity && cause.kinds == Kinds::of_neginf() &&
           inherited_.without(Kinds::of_neginf()).any();
  }

  Cause own(const Result& result, Kinds kinds) {
    if (made_ == nullptr) made_ = operation_root(call_, result.tensor, result.output, kinds);
    return {made_, kinds};
  }

  Cause extended(const BadArgument& argument, const Cause& cause, Kinds kinds) {
    Root& root = *cause.root;
    judge_factor(root, site().node_run, call_.plan, kinds);
    if (!call_.plan.moves_values && kinds != Kinds::of_neginf()) root.spread = true;
    const bool is_entry = root.source != Root::Source::kOperation && !cause.first_computation;
    if (is_entry && (root.kinds.nan() || !root.deliberate())) note_entry(call_, argument.tensor, root);
    return cause.extended({&call_.plan, site().live}, call_.plan.moves_values, kinds);
  }

  // Bad arguments that nobody saw being made.
  void find_external_arguments() {
    for (const TensorArgument& argument : tensor_arguments(call_)) {
      if (argument.overwritten) continue;  // looked at before the call
      const at::Tensor tensor = readable(argument.tensor);
      if (!tensor.defined() || is_known(tensor)) continue;
      const Kinds kinds = kinds_of(tensor);
      if (!kinds.any()) continue;
      if (const auto awaited = awaited_record(); awaited != nullptr && !lineage().knows(tensor)) {
        bad_arguments_.push_back({tensor, argument.name, argument.element, kinds, awaited});
      } else {
        bad_arguments_.push_back(bad_argument(call_, tensor, argument.name, argument.element, kinds, false));
      }
    }
  }

  // A collective of gloo's ends by copying from memory of its own to where its result is awaited.
  Lineage::RecordPtr awaited_record() const {
    const at::Tensor target = target_of_move(call_);
    const auto record = target.defined() ? lineage().find(target) : nullptr;
    return record != nullptr && record->awaited() ? record : nullptr;
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
  int64_t list_size_ = 1;
  c10::SmallVector<const BadArgument*, 4> concerned_;  // that a result is made of
  Kinds inherited_;                                    // from them
  const Kinds constants_;                              // from numbers
  std::shared_ptr<Root> made_;                         // shared by all outputs
  std::optional<Site> site_;
};

}  // namespace

BadArgument bad_argument(const CallFacts& call, const at::Tensor& tensor, std::string_view name, int64_t element,
                         Kinds kinds, bool overwritten) {
  BadArgument bad{tensor, std::string(name), element, kinds, record_of_argument(call, tensor, kinds)};
  bad.overwritten = overwritten;
  if (!call.plan.pointwise && !call.plan.elementwise_in_self) return bad;
  bad.count = counts_of(tensor).all();
  if (overwritten) bad.before = kinds_by_element(tensor);
  return bad;
}

void attribute(const CallFacts& call, c10::SmallVectorImpl<BadArgument>& bad_arguments, c10::ArrayRef<Result> results) {
  Inquiry inquiry(call, bad_arguments);
  for (const BadArgument& argument : bad_arguments) {  // those found just now have not been judged
    for (const Cause& cause : argument.record->causes()) cause.root->used = true;
  }
  for (const Result& result : results) {
    const Lineage::RecordPtr record = inquiry.record_of(result);
    lineage().remember(result.tensor, record);
    for (const Cause& cause : record->causes()) {
      if (cause.steps.empty() && !cause.root->deliberate()) note_unused(call.watch, record);
    }
    judge_result(call, result, record);
  }
  judge_use(call, bad_arguments);
}

void expect(const CallFacts& call, c10::ArrayRef<BadArgument> bad_arguments, const at::Tensor& result, bool awaited) {
  if (bad_arguments.empty() || !readable(result).defined()) return;
  const Step step{&call.plan, site_here(call.watch, call.thread).live};
  std::vector<Cause> causes;
  for (const BadArgument& argument : bad_arguments) {
    for (const Cause& cause : argument.record->causes()) {
      causes.push_back(cause.extended(step, call.plan.moves_values, cause.kinds));
    }
  }
  lineage().remember(result, std::make_shared<Record>(std::move(causes), awaited));
}

}  // namespace torchnan
