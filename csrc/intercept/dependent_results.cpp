#include "intercept/dependent_results.h"

#include <algorithm>
#include <limits>

#include <ATen/ops/any.h>
#include <ATen/ops/bitwise_not.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/graph_task.h>

#include "origin/current_call_site.h"
#include "intercept/unseen_calls.h"
#include "check/operators/for_each_tensor.h"
#include "check/operators/op_traits.h"
#include "origin/harm.h"
#include "origin/origin_records.h"
#include "origin/replayed_region.h"
#include "check/scan/storage_of.h"
#include "check/scan/tensor_scan.h"

namespace torchnan {
namespace {

bool is_dense(const at::Tensor& tensor) { return tensor.defined() && is_dense_on_host(*tensor.unsafeGetTensorImpl()); }

bool is_integer(const at::Tensor& tensor) { return c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false); }

std::string_view name_without_namespace(const OpPlan& plan) {
  const std::string_view name = plan.name;
  return name.substr(name.find("::") + 2);
}

bool is_cast(const OpPlan& plan) {
  const std::string_view name = name_without_namespace(plan);
  return name == "_to_copy" || name == "copy_";
}

bool chooses_one(const OpPlan& plan) {
  const std::string_view name = name_without_namespace(plan);
  return name == "argmax" || name == "argmin";
}

// eq, lt and their relatives: if a number is unknown, so is their answer.
bool compares_numbers(const OpPlan& plan) {
  const std::string_view name = name_without_namespace(plan);
  return plan.is_ordering || name == "eq" || name == "ne";
}

// Returns for each row, that is for each index of all dimensions but the last, whether any element is true.
at::Tensor any_in_row(const at::Tensor& elements) { return at::any(elements, -1, /*keepdim=*/true); }

bool may_be_expanded(const at::Tensor& tensor, c10::IntArrayRef sizes) {
  if (tensor.dim() > static_cast<int64_t>(sizes.size())) return false;
  for (int64_t d = 1; d <= tensor.dim(); ++d) {
    if (tensor.size(-d) != 1 && tensor.size(-d) != sizes[sizes.size() - static_cast<size_t>(d)]) return false;
  }
  return true;
}

// Returns these answers for the elements of a result; true for all of them if it is not known which answer is whose.
at::Tensor of_each_element(const at::Tensor& answers, c10::IntArrayRef sizes) {
  return may_be_expanded(answers, sizes) ? answers.expand(sizes) : at::ones(sizes, at::kBool);
}

// Returns a different value for each element.
at::Tensor changed(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kBool) return at::logical_not(tensor).contiguous();
  if (is_integer(tensor)) return at::bitwise_xor(tensor, 1).contiguous();
  return at::full(tensor.sizes(), std::numeric_limits<double>::quiet_NaN(),
                  at::TensorOptions().dtype(tensor.scalar_type()));
}

// Returns another index that is in range if there are at least two. The smallest integer, to which NaN is cast, gives
// the largest one, so that clamp() does not make both equal.
at::Tensor another_index(const at::Tensor& index) {
  const at::Tensor of_cast = at::where(at::lt(index, 0), at::bitwise_not(index), at::ones_like(index));
  return at::where(at::gt(index, 0), at::sub(index, 1), of_cast);
}

}  // namespace

DependentResults::DependentResults(const c10::OperatorHandle& op, const OpPlan& plan, c10::DispatchKeySet below,
                                   DetectionSession& session)
    : op_(op), plan_(plan), hides_nan_(hides_nan(name_without_namespace(plan))), below_(below), session_(session) {}

std::unique_ptr<DependentResults> DependentResults::of_call(const c10::OperatorHandle& op, const OpPlan& plan,
                                                            c10::DispatchKeySet below, DetectionSession& session,
                                                            c10::ArrayRef<BadArgument> bad_arguments,
                                                            c10::ArrayRef<c10::IValue> arguments) {
  const bool is_checked = plan.handling == OpPlan::Handling::kCheck || plan.handling == OpPlan::Handling::kRead;
  if (!is_checked || torch::autograd::get_current_graph_task_id() != -1 || replayed_region() != nullptr) return nullptr;
  const bool makes = plan.is_ordering || (!plan.looks_for_nan && !plan.returns_info);
  const bool is_followed = makes && std::any_of(bad_arguments.begin(), bad_arguments.end(),
                                                [](const BadArgument& one) { return !is_exhausted(*one.provenance); });
  if (!is_followed && !nonfinite_registry().has_dependent()) return nullptr;
  std::unique_ptr<DependentResults> call(new DependentResults(op, plan, below, session));
  for (const BadArgument& argument : bad_arguments) {
    const bool counts = argument.kinds.nan() || is_cast(plan);
    if (is_followed && counts && !argument.overwritten) call->nonfinite_.push_back(argument);
  }
  call->arguments_.assign(arguments.begin(), arguments.end());
  if (nonfinite_registry().has_dependent()) call->find_dependent_arguments();
  const bool is_needed = !call->nonfinite_.empty() || !call->alternative_arguments_.empty();
  return is_needed ? std::move(call) : nullptr;
}

// Of zeros_like(x) and its relatives, `x` gives only sizes and dtype, and is not saved.
void DependentResults::find_dependent_arguments() {
  for (const uint16_t saved : plan_.saved_arguments) {
    for_each_tensor(arguments_[saved], [&](const at::Tensor& tensor, int64_t) {
      if (!is_dense(tensor)) return;
      auto values = nonfinite_registry().find_dependent(tensor);
      if (values != nullptr) dependent_.emplace_back(tensor, std::move(values));
    });
  }
  if (!dependent_.empty()) save_alternatives();
}

// Drops the dependent arguments that do not count, and copies what the call may overwrite.
void DependentResults::save_alternatives() {
  std::vector<const c10::StorageImpl*> overwritten;
  std::vector<const c10::TensorImpl*> unread;
  for (const OpPlan::MutatedArgument& mutated : plan_.mutated_arguments) {
    for_each_tensor(arguments_[plan_.saved_arguments[mutated.saved_index]], [&](const at::Tensor& tensor, int64_t) {
      if (is_dense(tensor)) overwritten.push_back(storage_of(tensor));
      if (!mutated.reads_previous_value) unread.push_back(tensor.unsafeGetTensorImpl());
    });
  }
  const auto counts = [&](const at::Tensor& tensor, const DependentValues& values) {
    const bool selects = values.is_verdict && tensor.scalar_type() == at::kBool && plan_.selects_by_mask;
    const bool is_unread = std::find(unread.begin(), unread.end(), tensor.unsafeGetTensorImpl()) != unread.end();
    return !selects && !is_unread && !is_exhausted(*values.provenance) && shows(tensor, values);
  };
  for (const c10::IValue& argument : arguments_) {
    for_each_tensor(argument, [&](const at::Tensor& tensor, int64_t) {
      if (!is_dense(tensor)) return;
      const auto values = nonfinite_registry().find_dependent(tensor);
      const bool is_followed = values != nullptr && counts(tensor, *values);
      const bool is_overwritten =
          std::find(overwritten.begin(), overwritten.end(), storage_of(tensor)) != overwritten.end();
      if (is_followed || is_overwritten)
        alternatives_.emplace_back(tensor, alternative_of(tensor, is_followed ? values.get() : nullptr));
    });
  }
  const auto is_dropped = [&](const auto& one) { return !counts(one.first, *one.second); };
  dependent_.erase(std::remove_if(dependent_.begin(), dependent_.end(), is_dropped), dependent_.end());
  const auto alternative = [this](const at::Tensor& tensor) { return alternative_tensor(tensor); };
  for (const c10::IValue& argument : arguments_) alternative_arguments_.push_back(with_tensors(argument, alternative));
}

at::Tensor DependentResults::alternative_tensor(const at::Tensor& tensor) const {
  for (const auto& [original, alternative] : alternatives_) {
    if (original.is_same(tensor)) return alternative;
  }
  return tensor;
}

void DependentResults::report_read() const {
  if (plan_.handling != OpPlan::Handling::kRead) return;
  for (const auto& [tensor, values] : dependent_) {
    if (is_checked_by_user(*values)) continue;
    report_harm(session_, *values->provenance, HarmKind::kRead, NonfiniteKinds::only_nan());
  }
}

void DependentResults::record(c10::ArrayRef<c10::IValue> returned, uint64_t thread) {
  if (plan_.handling == OpPlan::Handling::kRead) return;
  std::vector<at::Tensor> results = written(returned, arguments_);
  const auto is_plain = [](const at::Tensor& tensor) { return is_dense(tensor); };
  if (results.empty() || !std::all_of(results.begin(), results.end(), is_plain)) return;
  const bool makes = !nonfinite_.empty() && std::any_of(results.begin(), results.end(),
                                                        [this](const at::Tensor& one) { return is_of_kind(one); });
  const bool follows = !alternative_arguments_.empty();
  if (!makes && !follows) return;
  const UnseenCalls unseen;
  if (follows) follow(results, thread);
  if (makes) make(results, thread);
}

// Returns the tensors that the call has written, including those in lists.
std::vector<at::Tensor> DependentResults::written(c10::ArrayRef<c10::IValue> returned,
                                                  c10::ArrayRef<c10::IValue> arguments) const {
  std::vector<at::Tensor> tensors;
  const auto add = [&](const at::Tensor& tensor, int64_t) { tensors.push_back(tensor); };
  for (const uint16_t r : plan_.checked_returns) for_each_tensor(returned[r], add);
  for (const OpPlan::MutatedArgument& mutated : plan_.mutated_arguments) {
    if (!mutated.returned) for_each_tensor(arguments[plan_.saved_arguments[mutated.saved_index]], add);
  }
  return tensors;
}

// Other operations cost too much, draw other random numbers, or are user code. Their results count as dependent as a
// whole.
bool DependentResults::may_run_again(c10::ArrayRef<at::Tensor> results) const {
  const bool is_cheap =
      plan_.is_data_movement || plan_.pointwise || plan_.is_reduction ||
      std::none_of(results.begin(), results.end(), [](const at::Tensor& result) { return result.is_floating_point(); });
  return is_cheap && plan_.name.starts_with("aten::") && !plan_.draws_random_numbers;
}

// Returns the results that the call would have written with the alternatives; nothing if the kernel rejects them.
std::vector<at::Tensor> DependentResults::run_again() const {
  torch::jit::Stack stack(alternative_arguments_.begin(), alternative_arguments_.end());
  try {
    op_.redispatchBoxed(below_.remove(c10::DispatchKey::Python), &stack);
  } catch (...) {
    return {};
  }
  return written(stack, alternative_arguments_);
}

void DependentResults::follow(c10::ArrayRef<at::Tensor> results, uint64_t thread) {
  if (dependent_.empty()) {  // dependent values at these positions have been overwritten
    for (const at::Tensor& result : results) forget_dependent(result);
    return;
  }
  const Step step{&plan_, current_call_site(session_, thread).live};
  std::vector<Cause> causes;
  bool is_verdict = true;
  for (const auto& [tensor, values] : dependent_) {
    is_verdict = is_verdict && values->is_verdict;
    for (const Cause& cause : values->provenance->causes())
      causes.push_back(cause.extended(step, plan_.is_data_movement, cause.kinds));
  }
  const auto provenance = std::make_shared<const Provenance>(std::move(causes));
  std::vector<at::Tensor> others;
  const bool compares = compares_numbers(plan_);
  if (!compares && may_run_again(results)) others = run_again();
  for (size_t i = 0; i < results.size(); ++i) {
    const at::Tensor& result = results[i];
    if (result.is_floating_point() && !check_finite(result).finite) continue;  // shows the NaN itself
    at::Tensor other;
    if (compares) {
      at::Tensor is_dependent = at::zeros(result.sizes(), at::kBool);
      for (const auto& [tensor, values] : dependent_) {
        const at::Tensor differs = at::ne(alternative_tensor(tensor), alternative_of(tensor, nullptr));
        if (may_be_expanded(differs, result.sizes())) is_dependent = at::logical_or(is_dependent, differs);
      }
      other = at::where(is_dependent, changed(result), result).contiguous();
    } else if (i < others.size() && others[i].sizes() == result.sizes() &&
               others[i].scalar_type() == result.scalar_type()) {
      other = others[i].contiguous();
    } else {
      other = changed(result);
    }
    remember(result, other, provenance, is_verdict);
  }
}

// Whether a result may come from a non-finite value without showing it. Among comparisons only a scalar answer counts:
// programs rely on a NaN among many elements not being above a threshold.
bool DependentResults::is_of_kind(const at::Tensor& result) const {
  if (plan_.is_ordering) return result.scalar_type() == at::kBool && result.dim() == 0;
  return is_integer(result) || (hides_nan_ && result.is_floating_point() && check_finite(result).finite);
}

// Integers computed from a NaN, the answers of ordered comparisons with one, and numbers that hide one.
void DependentResults::make(c10::ArrayRef<at::Tensor> results, uint64_t thread) {
  std::vector<Cause> causes;
  std::vector<const BadArgument*> made_of;
  const Site site = current_call_site(session_, thread);
  const Step step{&plan_, site.live};
  for (const BadArgument& argument : nonfinite_) {
    bool counts = false;
    for (const Cause& cause : argument.provenance->causes()) {
      if (plan_.is_ordering && is_gradient(cause)) continue;  // an optimizer that uses it is checked
      counts = true;
      causes.push_back(cause.extended(step, /*is_data_movement=*/false, cause.kinds));
    }
    if (counts) made_of.push_back(&argument);
  }
  if (made_of.empty()) return;
  const auto provenance = std::make_shared<const Provenance>(std::move(causes));
  if (is_exhausted(*provenance)) return;
  for (const at::Tensor& result : results) {
    if (!is_of_kind(result)) continue;
    at::Tensor is_made = at::zeros(result.sizes(), at::kBool);
    for (const BadArgument* argument : made_of)
      is_made = at::logical_or(is_made, where_it_is_made(*argument, result, results[0]));
    const at::Tensor other = is_integer(result) ? another_index(result) : changed(result);
    for (const BadArgument* argument : made_of) {
      for (const Cause& cause : argument->provenance->causes()) {
        if (cause.origin->source == OriginRecord::Source::kOperation) continue;
        record_first_use(*cause.origin, plan_, site, session_,
                         [&] { return owner_of(argument->tensor, is_parameter(argument->tensor), session_); });
      }
    }
    remember(result, at::where(is_made, other, result).contiguous(), provenance, plan_.is_ordering);
  }
}

// Returns for each element of an integer result whether it depends on a non-finite value of this argument.
at::Tensor DependentResults::where_it_is_made(const BadArgument& argument, const at::Tensor& result,
                                              const at::Tensor& first) const {
  const at::Tensor& given = argument.tensor;
  if (hides_nan_) return where_it_is_hidden(argument, result, first);
  if (given.numel() <= 1 && !plan_.is_ordering && !is_cast(plan_)) return at::zeros(result.sizes(), at::kBool);
  const at::Tensor bad = is_cast(plan_) ? at::logical_not(at::isfinite(given)) : at::isnan(given);
  if (chooses_one(plan_)) {
    if (arguments_[1].isNone()) return at::any(bad).expand(result.sizes());
    return at::any(bad, arguments_[1].toInt(), arguments_[2].toBool());
  }
  const bool has_values = !first.is_same(result) && first.is_floating_point() && first.sizes() == result.sizes();
  if (has_values) return at::isnan(first);  // each index has its value beside it
  return of_each_element(bad, result.sizes());
}

// The same for a finite number in place of a NaN. Such operators compute element by element, except for attention,
// losses of rows, and samples of a grid. They show a NaN among the values that they average or sample.
at::Tensor DependentResults::where_it_is_hidden(const BadArgument& argument, const at::Tensor& result,
                                                const at::Tensor& first) const {
  const bool is_shown = argument.name == "value" || argument.name == "input";
  if (is_shown || !first.is_same(result)) return at::zeros(result.sizes(), at::kBool);
  at::Tensor bad = at::isnan(argument.tensor);
  if (argument.name == "query" || argument.name == "attn_mask") bad = any_in_row(bad);
  if (argument.name == "key") bad = any_in_row(bad).any(-2, /*keepdim=*/true);
  if (argument.name == "grid") bad = at::any(bad, -1).unsqueeze(1);
  if (plan_.name.ends_with("margin_loss") || plan_.name.ends_with("margin_loss_forward")) {
    bad = result.dim() == 0 ? at::any(bad) : at::any(bad, -1);
  }
  return of_each_element(bad, result.sizes());
}

void DependentResults::remember(const at::Tensor& result, const at::Tensor& alternative,
                                const std::shared_ptr<const Provenance>& provenance, bool is_verdict) const {
  const auto before = nonfinite_registry().find_dependent(result);
  if (before == nullptr && provenance == nullptr) return;
  auto values = with_alternative(result, alternative, before.get(), provenance, is_verdict);
  if (values != nullptr || before != nullptr) nonfinite_registry().remember_dependent(result, std::move(values));
}

}  // namespace torchnan
