#include "origin/attribution.h"

#include <algorithm>
#include <set>

#include "scan/tensor_scan.h"
#include "origin/harm.h"
#include "origin/origin_records.h"
#include "call_sites/current_call_site.h"
#include "origin/unused_results.h"

namespace torchnan {
namespace {

// What can become of values of these kinds in an operation.
NonfiniteKinds possible_kinds(NonfiniteKinds given, const OpPlan& plan) {
  if (plan.is_data_movement) return given;
  return given.inf() ? NonfiniteKinds::of_nan() | NonfiniteKinds::of_inf() : given;
}

int64_t broadcast_factor(const at::Tensor& argument, const at::Tensor& result) {
  return argument.numel() == 0 ? 0 : result.numel() / argument.numel();
}

// Why the results of one call are bad.
class Attribution {
 public:
  Attribution(const CallContext& call, c10::SmallVectorImpl<BadArgument>& bad_arguments)
      : call_(call), bad_arguments_(bad_arguments), constants_(kinds_of_numbers(call)) {
    if (!call.plan.is_constant_factory) find_external_arguments();
    for (const c10::IValue& value : call.kept) {
      if (value.isList()) list_size_ = std::max<int64_t>(list_size_, static_cast<int64_t>(value.toListRef().size()));
    }
  }

  NonfiniteRegistry::ProvenancePtr record_of(const Result& result) {
    concern(result);
    if (concerned_.empty()) return std::make_shared<Provenance>(cause_without_bad_arguments(result));
    std::vector<Cause> causes = needs_elementwise_attribution(result) ? by_element(result) : by_kind(result);
    // What is new has to be the call's own doing; if nothing is, then all that was given is at fault.
    auto record = std::make_shared<Provenance>(std::move(causes));
    const bool needs_more = record->is_intentional() && !explained(result.kinds);
    return needs_more ? std::make_shared<Provenance>(own(result, result.kinds)) : record;
  }

 private:
  // Where lists are gone through together, a result is made of their elements at its place.
  void concern(const Result& result) {
    concerned_.clear();
    inherited_ = {};
    for (const BadArgument& argument : bad_arguments_) {
      const bool is_elsewhere = argument.element >= 0 && argument.element != result.output % list_size_;
      if (call_.plan.is_foreach_elementwise && is_elsewhere) continue;
      concerned_.push_back(&argument);
      inherited_ |= argument.kinds;
    }
  }

  // Whether kinds like these were among what the call was given.
  bool explained(NonfiniteKinds kinds) const {
    const NonfiniteKinds given = inherited_ | constants_;
    if (kinds.nan() && !given.nan()) return false;
    return !kinds.inf() || given.inf();
  }

  // Of finite tensors, or of numbers. An infinite number may be a mask; who computes with a NaN makes one.
  Cause cause_without_bad_arguments(const Result& result) {
    const bool is_constant = call_.plan.is_constant_factory || (explained(result.kinds) && !computes_with_nan());
    return is_constant ? Cause{constant_root(call_, result.tensor), result.kinds} : own(result, result.kinds);
  }

  bool computes_with_nan() const { return constants_.nan() && !call_.plan.is_data_movement; }

  // Whether each bad element of the result has to be asked for its cause: where several causes meet, where there is
  // something that was not given, or where there are more than the meant ones.
  bool needs_elementwise_attribution(const Result& result) const {
    if (!is_elementwise() || result.tensor.numel() == 0) return false;
    std::set<const OriginRecord*> causes;
    for (const BadArgument* argument : concerned_) {
      if (argument->overwritten && argument->before == nullptr) return false;
      for (const Cause& cause : argument->record->causes()) causes.insert(cause.root.get());
    }
    if (causes.size() > 1) return true;
    const OriginRecord& only = **causes.begin();
    const bool is_new = result.kinds.without(inherited_ | constants_ | NonfiniteKinds::of_nan()).any();
    if (!only.is_intentional()) return is_new;
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
    std::vector<Candidate> candidates;
    for (const BadArgument* argument : concerned_) {
      candidates.push_back({argument->tensor, argument->before, !argument->record->first().root->is_intentional()});
    }
    const Blame verdict = blame(result.tensor, candidates);
    std::vector<Cause> causes;
    for (size_t i = 0; i < concerned_.size(); ++i) {
      if (verdict.inherited[i].any()) propagate_cause(*concerned_[i], verdict.inherited[i], causes);
    }
    // Numbers like masked_fill's value are put where nothing bad was.
    if (verdict.own.any() && (!constants_.any() || computes_with_nan())) causes.push_back(own(result, verdict.own));
    return causes.empty() ? by_kind(result) : causes;
  }

  std::vector<Cause> by_kind(const Result& result) {
    std::vector<Cause> causes;
    for (const BadArgument* argument : concerned_) propagate_cause(*argument, result.kinds, causes);
    if (causes.empty()) {
      for (const BadArgument* argument : concerned_) propagate_causes(*argument, result.kinds, causes);
    }
    return causes;
  }

  // The causes of an argument that can have led to these kinds.
  void propagate_cause(const BadArgument& argument, NonfiniteKinds there, std::vector<Cause>& causes) {
    for (const Cause& cause : argument.record->causes()) {
      const NonfiniteKinds kinds = possible_kinds(cause.kinds, call_.plan) & there;
      if (!kinds.any() || is_absorbed(cause)) continue;
      causes.push_back(extended(argument, cause, kinds));
    }
  }

  void propagate_causes(const BadArgument& argument, NonfiniteKinds there, std::vector<Cause>& causes) {
    for (const Cause& cause : argument.record->causes()) causes.push_back(extended(argument, cause, there));
  }

  // exp(-inf) is 0: if there is anything else, that has done it.
  bool is_absorbed(const Cause& cause) const {
    return call_.plan.absorbs_negative_infinity && cause.kinds == NonfiniteKinds::of_neginf() &&
           inherited_.without(NonfiniteKinds::of_neginf()).any();
  }

  Cause own(const Result& result, NonfiniteKinds kinds) {
    if (made_ == nullptr) made_ = operation_root(call_, result.tensor, result.output, kinds);
    return {made_, kinds};
  }

  Cause extended(const BadArgument& argument, const Cause& cause, NonfiniteKinds kinds) {
    OriginRecord& root = *cause.root;
    mark_factor(root, site().node_execution_id, call_.plan, kinds);
    if (!call_.plan.is_data_movement && kinds != NonfiniteKinds::of_neginf()) root.spread = true;
    const bool is_entry = root.source != OriginRecord::Source::kOperation && !cause.first_computation;
    if (is_entry && (root.kinds.nan() || !root.is_intentional())) record_entry(call_, argument.tensor, root);
    return cause.extended({&call_.plan, site().live}, call_.plan.is_data_movement, kinds);
  }

  // Bad arguments that nobody saw being made.
  void find_external_arguments() {
    for (const TensorArgument& argument : tensor_arguments(call_)) {
      if (argument.overwritten) continue;  // looked at before the call
      const at::Tensor tensor = scannable_values(argument.tensor);
      if (!tensor.defined() || is_known(tensor)) continue;
      const NonfiniteKinds kinds = kinds_of(tensor);
      if (!kinds.any()) continue;
      if (const auto awaited = awaited_record(); awaited != nullptr && !nonfinite_registry().knows(tensor)) {
        bad_arguments_.push_back({tensor, argument.name, argument.element, kinds, awaited});
      } else {
        bad_arguments_.push_back(bad_argument(call_, tensor, argument.name, argument.element, kinds, false));
      }
    }
  }

  // A collective of gloo's ends by copying from memory of its own to where its result is awaited.
  NonfiniteRegistry::ProvenancePtr awaited_record() const {
    const at::Tensor target = copy_destination(call_);
    const auto record = target.defined() ? nonfinite_registry().find(target) : nullptr;
    return record != nullptr && record->awaited() ? record : nullptr;
  }

  bool is_known(const at::Tensor& tensor) const {
    for (const BadArgument& argument : bad_arguments_) {
      if (argument.tensor.unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl()) return true;
    }
    return false;
  }

  const Site& site() {
    if (!site_) site_ = current_call_site(call_.session, call_.thread);
    return *site_;
  }

  const CallContext& call_;
  c10::SmallVectorImpl<BadArgument>& bad_arguments_;
  int64_t list_size_ = 1;
  c10::SmallVector<const BadArgument*, 4> concerned_;  // that a result is made of
  NonfiniteKinds inherited_;                           // from them
  const NonfiniteKinds constants_;                     // from numbers
  std::shared_ptr<OriginRecord> made_;                 // shared by all outputs
  std::optional<Site> site_;
};

}  // namespace

BadArgument bad_argument(const CallContext& call, const at::Tensor& tensor, std::string_view name, int64_t element,
                         NonfiniteKinds kinds, bool overwritten) {
  BadArgument bad{tensor, std::string(name), element, kinds, record_of_argument(call, tensor, kinds)};
  bad.overwritten = overwritten;
  if (!call.plan.pointwise && !call.plan.elementwise_in_self) return bad;
  bad.count = counts_of(tensor).all();
  if (overwritten) bad.before = kinds_by_element(tensor);
  return bad;
}

void attribute(const CallContext& call, c10::SmallVectorImpl<BadArgument>& bad_arguments,
               c10::ArrayRef<Result> results) {
  Attribution inquiry(call, bad_arguments);
  for (const BadArgument& argument : bad_arguments) {  // those found just now have not been judged
    for (const Cause& cause : argument.record->causes()) cause.root->used = true;
  }
  for (const Result& result : results) {
    const NonfiniteRegistry::ProvenancePtr record = inquiry.record_of(result);
    nonfinite_registry().remember(result.tensor, record);
    for (const Cause& cause : record->causes()) {
      if (cause.steps.empty() && !cause.root->is_intentional()) record_unused(call.session, record);
    }
    report_result(call, result, record);
  }
  report_weight_use(call, bad_arguments);
}

void expect(const CallContext& call, c10::ArrayRef<BadArgument> bad_arguments, const at::Tensor& result, bool awaited) {
  if (bad_arguments.empty() || !scannable_values(result).defined()) return;
  const Step step{&call.plan, current_call_site(call.session, call.thread).live};
  std::vector<Cause> causes;
  for (const BadArgument& argument : bad_arguments) {
    for (const Cause& cause : argument.record->causes()) {
      causes.push_back(cause.extended(step, call.plan.is_data_movement, cause.kinds));
    }
  }
  nonfinite_registry().remember(result, std::make_shared<Provenance>(std::move(causes), awaited));
}

}  // namespace torchnan
