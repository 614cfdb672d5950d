#include "origin/arguments.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "check/operators/for_each_tensor.h"
#include "origin/runtime_queries.h"
#include "check/scan/storage_of.h"
#include "check/scan/storage_ranges.h"
#include "check/scan/tensor_scan.h"
#include "base/format.h"

namespace torchnan {
namespace {

constexpr size_t kMaxReportedInputs = 16;

NonfiniteKinds kinds_of_number(double x) {
  if (std::isnan(x)) return NonfiniteKinds::only_nan();
  if (!std::isinf(x)) return {};
  return x > 0 ? NonfiniteKinds::only_posinf() : NonfiniteKinds::only_neginf();
}

// The storages that the call has written.
StorageRanges overwritten_storages(const CallContext& call) {
  StorageRanges storages;
  for (const OpPlan::MutatedArgument& mutated : call.plan.mutated_arguments) {
    for_each_tensor(call.saved[mutated.saved_index], [&](const at::Tensor& tensor, int64_t) { storages.add(tensor); });
  }
  storages.sort();
  return storages;
}

// A normalization writes its running statistics in training only.
bool is_evaluation(const CallContext& call) {
  for (size_t k = 0; k < call.saved.size(); ++k) {
    if (call.saved[k].isBool() && call.plan.argument_names[call.plan.saved_arguments[k]] == "training") {
      return !call.saved[k].toBool();
    }
  }
  return false;
}

void add_initial_magnitude(const CallContext& call, const at::Tensor& parameter, InputSummary& input) {
  const auto initial = query_initial_magnitude(storage_of(parameter), call.session);
  if (!initial) return;
  input.initial_absmax = initial->absmax;
  input.initial_step = initial->step;
}

InputSummary summarise(const CallContext& call, const TensorArgument& argument) {
  InputSummary input;
  input.name = argument.name;
  input.dtype = dtype_name(argument.tensor);
  input.overwritten = argument.overwritten && !is_evaluation(call);
  const at::Tensor tensor = scannable_values(argument.tensor);
  const at::Tensor& shaped = tensor.defined() ? tensor : argument.tensor;
  if (!shaped.is_nested()) input.shape = shaped.sizes().vec();
  if (tensor.defined() && is_parameter(tensor)) add_initial_magnitude(call, tensor, input);
  if (input.overwritten) return input;
  input.tally = tensor.defined() ? compute_stats(tensor).tally : integer_range(argument.tensor);
  return input;
}

// Factors of 1 carry no information: alpha, beta and value are 1 unless user code passes another number.
bool is_neutral(const std::string& name, double number) {
  return number == 1 && (name == "alpha" || name == "beta" || name == "value");
}

// The tally of a number, also of one wrapped as a tensor: x / 0. Nothing if the value is not a number.
std::optional<Tally> tally_of_number(const c10::IValue& value) {
  if (value.isDouble()) return tally_of(value.toDouble());
  if (value.isInt()) return tally_of(static_cast<double>(value.toInt()));
  if (!value.isTensor() || !value.toTensor().defined()) return std::nullopt;
  const at::Tensor& tensor = value.toTensor();
  if (!tensor.unsafeGetTensorImpl()->is_wrapped_number()) return std::nullopt;
  return scannable_values(tensor).defined() ? compute_stats(tensor).tally : integer_range(tensor);
}

void add_numbers(const CallContext& call, std::vector<InputSummary>& inputs) {
  for (size_t k = 0; k < call.saved.size(); ++k) {
    const std::optional<Tally> tally = tally_of_number(call.saved[k]);
    if (!tally) continue;
    InputSummary input;
    input.name = call.plan.argument_names[call.plan.saved_arguments[k]];
    if (is_neutral(input.name, tally->min.value_or(0))) continue;
    input.dtype = InputSummary::kNumber;
    input.tally = *tally;
    inputs.push_back(std::move(input));
  }
}

}  // namespace

std::vector<TensorArgument> tensor_arguments(const CallContext& call) {
  const StorageRanges overwritten = overwritten_storages(call);
  std::vector<TensorArgument> found;
  for (size_t k = 0; k < call.saved.size(); ++k) {
    const std::string& name = call.plan.argument_names[call.plan.saved_arguments[k]];
    const OpPlan::MutatedArgument* written = call.plan.mutated_argument_at(k);
    if (written != nullptr && !written->reads_previous_value) continue;
    const c10::IValue& value = call.saved[k];
    if (value.isTensor() && value.toTensor().defined()) {
      if (value.toTensor().unsafeGetTensorImpl()->is_wrapped_number()) continue;
      found.push_back({value.toTensor(), name, written != nullptr || overwritten.overlap(value.toTensor())});
    } else if (value.isList()) {
      const auto elements = value.toListRef();
      for (size_t i = 0; i < elements.size(); ++i) {
        if (!elements[i].isTensor() || !elements[i].toTensor().defined()) continue;
        const at::Tensor& tensor = elements[i].toTensor();
        found.push_back({tensor, format_text("{}[{}]", name, i), written != nullptr || overwritten.overlap(tensor),
                         static_cast<int64_t>(i)});
      }
    }
  }
  return found;
}

at::Tensor destination_of_internal_copy(const CallContext& call, const at::Tensor& source) {
  const bool is_internal = source.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj() == nullptr;
  if (!is_internal || !call.plan.is_data_movement) return {};
  for (const OpPlan::MutatedArgument& mutated : call.plan.mutated_arguments) {
    const c10::IValue& target = call.saved[mutated.saved_index];
    if (!mutated.reads_previous_value && target.isTensor()) return scannable_values(target.toTensor());
  }
  return {};
}

NonfiniteKinds kinds_of_numbers(const CallContext& call) {
  NonfiniteKinds kinds;
  for (const c10::IValue& value : call.saved) {
    if (value.isDouble()) {
      kinds |= kinds_of_number(value.toDouble());
    } else if (value.isComplexDouble()) {
      const c10::complex<double> z = value.toComplexDouble();
      kinds |= kinds_of_number(z.real()) | kinds_of_number(z.imag());
    } else if (value.isTensor() && value.toTensor().defined() &&
               value.toTensor().unsafeGetTensorImpl()->is_wrapped_number()) {
      kinds |= kinds_of(value.toTensor());
    }
  }
  return kinds;
}

std::vector<InputSummary> summarise_inputs(const CallContext& call, int64_t output) {
  const int64_t size = list_size(call);
  std::vector<InputSummary> inputs;
  for (const TensorArgument& argument : tensor_arguments(call)) {
    if (inputs.size() == kMaxReportedInputs) break;
    if (is_made_of(call.plan, argument.element, output, size)) inputs.push_back(summarise(call, argument));
  }
  add_numbers(call, inputs);
  return inputs;
}

int64_t list_size(const CallContext& call) {
  int64_t size = 1;
  for (const c10::IValue& value : call.saved) {
    if (value.isList()) size = std::max<int64_t>(size, static_cast<int64_t>(value.toListRef().size()));
  }
  return size;
}

// Copies nothing: that may need the GIL.
bool is_parameter(const at::Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->autograd_meta() == nullptr)
    return false;  // a result that autograd has not seen yet
  const at::TensorBase& whole = tensor.is_view() ? tensor._base() : static_cast<const at::TensorBase&>(tensor);
  return whole.requires_grad() && whole.is_leaf();
}

std::string dtype_name(const at::Tensor& tensor) { return std::string(c10::getDtypeNames(tensor.scalar_type()).first); }

}  // namespace torchnan
