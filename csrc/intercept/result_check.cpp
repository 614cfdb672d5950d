#include "intercept/result_check.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/graph_task.h>

#include "bounds/bound_audit.h"
#include "bounds/dtype_range.h"
#include "bounds/bound_cache.h"
#include "scan/tensor_scan.h"
#include "origin/nonfinite_registry.h"
#include "detection/error_containment.h"

namespace torchnan {
namespace {

constexpr int64_t kSmall = 4096;  // elements: as cheap to read as to reason about

template <typename Visit>
bool all_tensors_of(const Operand& operand, Visit&& visit) {
  if (operand.kind == Operand::Kind::kTensor) return visit(*operand.tensor);
  if (operand.kind != Operand::Kind::kValues) return true;
  const auto* values = static_cast<const c10::IValue*>(operand.first);
  return std::all_of(values, values + operand.count, [&](const c10::IValue& value) {
    return !value.isTensor() || !value.toTensor().defined() || visit(value.toTensor());
  });
}

}  // namespace

void ResultCheck::bound_results(c10::ArrayRef<Operand> arguments, const ExternalBounds* elsewhere) {
  if (plan_.bounds.rule == nullptr || session_.options().exact || !is_worth_bounding(arguments)) return;
  try {
    apply_rule(arguments, elsewhere);
  } catch (...) {
    bounds_.clear();
    contain(session_, "a bound rule",
            [this] { count_failure(session_, fmt::format("the bound rule of {}", plan_.name)); });
  }
}

void ResultCheck::apply_rule(c10::ArrayRef<Operand> arguments, const ExternalBounds* elsewhere) {
  Counters& counters = thread_.counters();
  const BoundSource source(counters.bytes, counters.bytes_scanned_unknown, elsewhere);
  const BoundRule& rule = *plan_.bounds.rule;
  if (!plan_.bounds.elementwise_in_lists) {
    bounds_.resize(std::max(kMostResults, plan_.checked_returns.size() + plan_.written.size()));
    rule(RuleArguments(arguments, source), bounds_);
    return;
  }
  bounds_.resize(arguments.empty() ? 0 : arguments[0].count);
  for (size_t element = 0; element < bounds_.size(); ++element) {
    rule(RuleArguments(arguments, source, element), {&bounds_[element], 1});
  }
}

// Where all is small a look is cheaper; but whoever samples wants every bound to be seen to hold. Rules speak of plain
// tensors: what is said of the sizes of others is another thing than what is in memory.
bool ResultCheck::is_worth_bounding(c10::ArrayRef<Operand> arguments) const {
  bool is_worth = session_.options().sample > 0;
  for (const Operand& argument : arguments) {
    if (!all_tensors_of(argument, is_plain)) return false;
    is_worth |= argument.kind == Operand::Kind::kValues ||
                (argument.kind == Operand::Kind::kTensor && argument.tensor->numel() > kSmall);
  }
  return is_worth;
}

ResultCheck::Outcome ResultCheck::judge(const at::Tensor& result, int64_t output, bool masks_are_known) {
  const auto proof = proof_of(result, output);
  if (!proof || (proof->masked && !masks_are_known)) return read(result, static_cast<size_t>(output));
  const Skip skip = reason_to_skip(result);
  return skip == Skip::kNone ? note_proved(result, *proof) : this->skip(result, skip);
}

std::optional<Bound> ResultCheck::proof_of(const at::Tensor& result, int64_t output) {
  const Bound bound = bound_at(static_cast<size_t>(output));
  if (!is_proved(result, bound) || is_sampled()) return std::nullopt;
  return Bound{with_rounding_margin(bound.max_abs, range_of(result.scalar_type())), bound.nonnegative, bound.masked};
}

ResultCheck::Outcome ResultCheck::skip(const at::Tensor& result, Skip reason) {
  thread_.counters().skipped[static_cast<size_t>(reason)].add(1);
  if (plan_.writes_in_place()) bound_cache().mark_stale(result);  // written as integers, say
  return Outcome::kSkipped;
}

Bound ResultCheck::bound_at(size_t place) const { return place < bounds_.size() ? bounds_[place] : Bound(); }

bool ResultCheck::is_proved(const at::Tensor& result, const Bound& bound) const {
  const DtypeRange range = range_of(result.scalar_type());
  return with_rounding_margin(bound.max_abs, range) <= range.limit && is_plain(result) && result.numel() > kSmall;
}

// In N steps, every proved result once.
bool ResultCheck::is_sampled() {
  const int64_t n = session_.options().sample;
  if (n == 0) return false;
  const int64_t step = session_.step();
  return (thread_.next_result_index(step) + step) % n == 0;
}

ResultCheck::Outcome ResultCheck::note_proved(const at::Tensor& result, const Bound& proof) {
  thread_.counters().checked.add(1);
  thread_.counters().proved.add(1);
  thread_.counters().bytes_proved.add(static_cast<int64_t>(result.nbytes()));
  bound_cache().record_written(result, proof, &plan_.name);
  note_magnitude(result, proof.max_abs, false);
  if (proof.masked) return Outcome::kFiniteOrMasked;
  if (nonfinite_registry().in_use() && plan_.writes_in_place()) nonfinite_registry().settle(result);
  return Outcome::kFinite;
}

// Of what the forward pass makes. A node of the backward pass has its site from there, and its own scale: gradients.
void ResultCheck::note_headroom(const at::Tensor& result, double max_abs, bool is_measured) {
  if (!HeadroomTable::knows(result.scalar_type()) || torch::autograd::get_current_graph_task_id() != -1) return;
  if (site_ == 0) site_ = host_runtime().current_stack_id();
  session_.headroom()->note({&plan_, site_, result.scalar_type(), c10::GradMode::is_enabled()}, max_abs, is_measured);
}

void ResultCheck::record_claim(const at::Tensor& result, size_t place, const ScanResult& verdict) const {
  const Bound& bound = bounds_[place];
  if (bound.masked) return;
  const DtypeRange range = range_of(result.scalar_type());
  const auto smallest = smallest_of(result);
  bound_audit().add({plan_.name, static_cast<int64_t>(place), with_rounding_margin(bound.max_abs, range),
                     verdict.finite ? verdict.max_abs : RuleArguments::kUnknown, range.limit, bound.nonnegative,
                     smallest ? smallest->value : -RuleArguments::kUnknown});
}

ResultCheck::Outcome ResultCheck::read(const at::Tensor& result, size_t place) {
  const Bound bound = bound_at(place);
  const ScanResult verdict = check_finite(result);
  if (verdict.skip != Skip::kNone) return skip(result, verdict.skip);
  thread_.counters().checked.add(1);
  thread_.counters().bytes.add(verdict.bytes);
  if (bound_audit().enabled() && place < bounds_.size()) record_claim(result, place, verdict);
  if (!bounds_.empty()) thread_.counters().bytes_rescanned.add(verdict.bytes);
  if (!verdict.finite) {
    thread_.counters().nonfinite.add(1);
    if (bound_cache().pending_collective(scannable_values(result)) == nullptr)
      bound_cache().forget(scannable_values(result));
    return Outcome::kNonFinite;
  }
  const DtypeRange range = range_of(result.scalar_type());
  if (range.limit > 0 && verdict.max_abs > with_rounding_margin(bound.max_abs, range)) {
    session_.count_internal_error(
        fmt::format("the bound of {}", plan_.name),
        fmt::format("the bound of {} was {}, and its result {}", plan_.name, bound.max_abs, verdict.max_abs));
  }
  bound_cache().record_written(result, {verdict.max_abs, bound.nonnegative}, &plan_.name);
  note_magnitude(result, verdict.max_abs, true);
  if (nonfinite_registry().in_use() && plan_.writes_in_place()) nonfinite_registry().settle(scannable_values(result));
  return Outcome::kFinite;
}

}  // namespace torchnan
