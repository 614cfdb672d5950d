#include "origin/host_evidence.h"

#include <algorithm>
#include <set>

#include "origin/current_call_site.h"
#include "check/operators/op_traits.h"
#include "origin/collectives.h"
#include "origin/runtime_queries.h"
#include "origin/origin_records.h"
#include "origin/written_part.h"
#include "check/scan/tensor_scan.h"

namespace torchnan {
namespace {

int64_t broadcast_factor(const at::Tensor& argument, const at::Tensor& result) {
  return argument.numel() == 0 ? 0 : result.numel() / argument.numel();
}

}  // namespace

HostEvidence::HostEvidence(const CallContext& call, c10::SmallVectorImpl<BadArgument>& bad_arguments)
    : call_(call), bad_arguments_(bad_arguments) {
  if (!call.plan.is_constant_factory) find_external_arguments();
  list_size_ = list_size(call);
}

// In elementwise list operations, a result depends only on the elements at its index.
void HostEvidence::select(const Result& result) {
  result_ = &result;
  relevant_.clear();
  arguments_.clear();
  inherited_ = {};
  constants_ = kinds_of_numbers(call_);
  for (const BadArgument& argument : bad_arguments_) {
    if (!is_made_of(call_.plan, argument.element, result.output, list_size_)) continue;
    if (is_written_number(argument)) {
      constants_ |= argument.kinds;
      continue;
    }
    relevant_.push_back(&argument);
    arguments_.push_back({argument.kinds, argument.provenance});
    inherited_ |= argument.kinds;
  }
}

// Whether the argument is a number that user code writes into a tensor: x[i, j] = nan, where(condition, nan, x).
bool HostEvidence::is_written_number(const BadArgument& argument) const {
  const bool is_spread = result_->tensor.storage().nbytes() > result_->tensor.itemsize();
  const auto& causes = argument.provenance->causes();
  return call_.plan.is_data_movement && is_spread && std::all_of(causes.begin(), causes.end(), [](const Cause& cause) {
           return cause.origin->source == OriginRecord::Source::kConstant && cause.origin->scalar;
         });
}

const Site& HostEvidence::site() {
  if (!site_) site_ = current_call_site(call_.session, call_.thread);
  return *site_;
}

std::optional<ElementAttribution> HostEvidence::attribute_elements(NonfiniteKinds kinds) {
  if (!needs_elementwise_attribution(kinds)) return std::nullopt;
  std::vector<Candidate> candidates;
  for (const BadArgument* argument : relevant_) {
    const bool is_accident = !argument->provenance->first().origin->is_intentional();
    candidates.push_back({argument->tensor, argument->before, is_accident && !call_.plan.is_data_movement});
  }
  ElementAttribution found = attribute_by_element(result_->tensor, candidates);
  // Numbers like masked_fill's value are written over healthy elements. A mask needs no cause, a NaN does.
  if (constants_.any() && !computes_with_nan())
    found.own = writes_nan() ? found.own & NonfiniteKinds::only_nan() : NonfiniteKinds();
  return found;
}

// Whether each bad element of the result needs a separate attribution: if several causes meet, or if there are kinds
// that no argument had, or more than the intentional ones. A tensor on a device, which the call has copied to the host,
// cannot be read here.
bool HostEvidence::needs_elementwise_attribution(NonfiniteKinds kinds) const {
  if (!is_elementwise() || result_->tensor.numel() == 0) return false;
  std::set<const OriginRecord*> causes;
  for (const BadArgument* argument : relevant_) {
    if (!argument->tensor.is_cpu()) return false;
    if (argument->overwritten && argument->before == nullptr) return false;
    for (const Cause& cause : argument->provenance->causes()) causes.insert(cause.origin.get());
  }
  if (causes.size() > 1 || (writes_nan() && kinds.nan())) return true;
  const OriginRecord& only = **causes.begin();
  const bool is_new = kinds.without(inherited_ | constants_ | NonfiniteKinds::only_nan()).any();
  if (!only.is_intentional()) return is_new;
  return is_new || kinds.nan() || (!constants_.any() && has_more_than_was_given());
}

// The call is repeated without the masks. A softmax or a logarithm of a sum passes -inf on where all of a row is
// masked: these are in healthy programs, at every step.
bool HostEvidence::has_own_elements(NonfiniteKinds kinds) {
  const bool is_mask = kinds == NonfiniteKinds::only_neginf() && call_.plan.absorbs_negative_infinity;
  if (call_.finite_run == nullptr || is_mask || !result_->tensor.is_cpu()) return false;
  std::vector<at::Tensor> masks;
  for (const BadArgument* argument : relevant_) masks.push_back(argument->tensor);
  std::vector<bool> is_own;
  const auto kinds_here = kinds_by_element(result_->tensor);
  for (const NonfiniteKinds one : *kinds_here) is_own.push_back(one.any());
  // An operation may be undefined at one of them, as that of a singular matrix.
  for (const double number : {0.0, 1.0}) {
    const std::vector<at::Tensor> results = call_.finite_run->results_with(number, masks);
    const auto output = static_cast<size_t>(result_->output);
    const at::Tensor result = output < results.size() ? scannable_values(results[output]) : at::Tensor();
    if (!result.defined() || result.sizes() != result_->tensor.sizes() || !kinds_of(result).any()) return false;
    const auto kinds_there = kinds_by_element(result);
    for (size_t i = 0; i < is_own.size(); ++i) is_own[i] = is_own[i] && (*kinds_there)[i].any();
  }
  return std::find(is_own.begin(), is_own.end(), true) != is_own.end();
}

bool HostEvidence::is_elementwise() const {
  if (call_.plan.pointwise) return true;
  return call_.plan.elementwise_in_self && relevant_.size() == 1 && relevant_[0]->name == "self";
}

bool HostEvidence::has_more_than_was_given() const {
  int64_t given = 0;
  for (const BadArgument* argument : relevant_) {
    given += argument->count * broadcast_factor(argument->tensor, result_->tensor);
  }
  return counts_of(result_->tensor).all() > given;
}

std::shared_ptr<OriginRecord> HostEvidence::new_origin(NonfiniteKinds kinds) {
  if (writes_nan()) return constant_origin(call_, result_->tensor);
  if (made_ != nullptr) return made_;
  made_ = operation_origin(call_, result_->tensor, result_->output, kinds);
  count_overwritten(made_->facts.inputs);
  if (is_step_with_number()) {
    made_->facts.hint = query_bad_hyperparameter(call_.session);  // which the operation has as alpha or value
    made_ = one_origin_of_step(call_.session, std::move(made_));
  }
  return made_;
}

// Of an argument that the call has overwritten, only the non-finite values are known.
void HostEvidence::count_overwritten(std::vector<InputSummary>& inputs) const {
  for (const BadArgument* argument : relevant_) {
    if (!argument->overwritten || argument->before == nullptr) continue;
    const auto input =
        std::find_if(inputs.begin(), inputs.end(), [&](const InputSummary& one) { return one.name == argument->name; });
    if (input == inputs.end()) continue;
    for (const NonfiniteKinds kinds : *argument->before) {
      input->tally.nan += kinds.nan();
      input->tally.posinf += kinds.posinf();
      input->tally.neginf += kinds.neginf();
    }
  }
}

// The result comes from finite tensors, or from numbers. An infinite number may be a mask, except in an optimizer; an
// operation that computes with a NaN makes one.
std::shared_ptr<OriginRecord> HostEvidence::new_origin_without_arguments(NonfiniteKinds kinds) {
  const bool is_given = (!kinds.nan() || constants_.nan()) && (!kinds.inf() || constants_.inf());
  const bool is_put_there = is_given && !computes_with_nan() && !is_step_with_number();
  const bool is_constant = call_.plan.is_constant_factory || is_put_there;
  return is_constant ? constant_origin(call_, result_->tensor) : new_origin(kinds);
}

// Whether an optimizer computes with a non-finite learning rate, or another number.
bool HostEvidence::is_step_with_number() {
  if (!constants_.any() || call_.plan.is_data_movement) return false;
  return query_site(site(), call_.session).phase == Phase::kOptimizer;
}

void HostEvidence::record_first_use(size_t argument, OriginRecord& origin) {
  if (!origin.kinds.nan() && origin.is_intentional()) return;
  const at::Tensor& tensor = relevant_[argument]->tensor;
  torchnan::record_first_use(origin, call_.plan, site(), call_.session,
                             [&] { return owner_of(tensor, is_parameter(tensor), call_.session); });
}

// Finds bad arguments whose origin was not observed.
void HostEvidence::find_external_arguments() {
  for (const TensorArgument& argument : tensor_arguments(call_)) {
    if (argument.overwritten) continue;  // scanned before the call
    if (call_.plan.has_unwritten_output && is_unwritten_argument(call_.plan.name, argument.name)) continue;
    const at::Tensor tensor = scannable_values(argument.tensor);
    if (!tensor.defined() || is_known(tensor)) continue;
    const NonfiniteKinds kinds = kinds_of(tensor);
    if (!kinds.any()) continue;
    if (argument.tensor.is_sparse() && !nonfinite_registry().contains(tensor)) expect_sparse_result(tensor);
    const auto pending = pending_provenance(tensor);
    if (pending != nullptr && pending->explains(kinds) && !nonfinite_registry().contains(tensor)) {
      bad_arguments_.push_back({tensor, argument.name, argument.element, kinds, pending});
    } else if (const auto producer = producer_of_saved_argument(call_.plan.name, argument.name); !producer.empty()) {
      const NonfiniteKinds written = kinds_in_written_part(call_, tensor);
      if (!written.nan()) continue;  // its table is full of -inf
      auto provenance =
          std::make_shared<Provenance>(Cause{saved_argument_origin(call_, tensor, written, producer), written});
      nonfinite_registry().remember(tensor, provenance);
      bad_arguments_.push_back({tensor, argument.name, argument.element, kinds, std::move(provenance)});
    } else {
      bad_arguments_.push_back(bad_argument(call_, tensor, argument.name, argument.element, kinds, false));
    }
  }
}

// Returns the causes of a pending result of a collective that the call copies from internal memory.
NonfiniteRegistry::ProvenancePtr HostEvidence::pending_provenance(const at::Tensor& source) const {
  const at::Tensor target = destination_of_internal_copy(call_, source);
  const auto provenance = target.defined() ? nonfinite_registry().find(target) : nullptr;
  return provenance != nullptr && provenance->pending() ? provenance : nullptr;
}

bool HostEvidence::is_known(const at::Tensor& tensor) const {
  for (const BadArgument& argument : bad_arguments_) {
    if (argument.tensor.unsafeGetTensorImpl() == tensor.unsafeGetTensorImpl()) return true;
  }
  return false;
}

}  // namespace torchnan
