#include "origin/arguments.h"

#include <cmath>

#include <fmt/format.h>

#include "scan/tensor_scan.h"

namespace torchnan {
namespace {

constexpr size_t kMaxReportedInputs = 16;

NonfiniteKinds kinds_of_number(double x) {
  if (std::isnan(x)) return NonfiniteKinds::of_nan();
  if (!std::isinf(x)) return {};
  return x > 0 ? NonfiniteKinds::of_posinf() : NonfiniteKinds::of_neginf();
}

}  // namespace

std::vector<TensorArgument> tensor_arguments(const CallContext& call) {
  std::vector<TensorArgument> found;
  for (size_t k = 0; k < call.kept.size(); ++k) {
    const std::string& name = call.plan.argument_names[call.plan.saved_arguments[k]];
    const OpPlan::MutatedArgument* written = call.plan.mutated_argument_at(k);
    if (written != nullptr && !written->reads_previous_value) continue;
    const bool overwritten = written != nullptr;
    const c10::IValue& value = call.kept[k];
    if (value.isTensor() && value.toTensor().defined()) {
      found.push_back({value.toTensor(), name, overwritten});
    } else if (value.isList()) {
      const auto elements = value.toListRef();
      for (size_t i = 0; i < elements.size(); ++i) {
        if (!elements[i].isTensor() || !elements[i].toTensor().defined()) continue;
        found.push_back({elements[i].toTensor(), fmt::format("{}[{}]", name, i), overwritten, static_cast<int64_t>(i)});
      }
    }
  }
  return found;
}

at::Tensor copy_destination(const CallContext& call) {
  if (!call.plan.is_data_movement) return {};
  for (const OpPlan::MutatedArgument& written : call.plan.written) {
    const c10::IValue& target = call.kept[written.kept];
    if (!written.reads_previous_value && target.isTensor()) return scannable_values(target.toTensor());
  }
  return {};
}

NonfiniteKinds kinds_of_numbers(const CallContext& call) {
  NonfiniteKinds kinds;
  for (const c10::IValue& value : call.kept) {
    if (value.isDouble()) {
      kinds |= kinds_of_number(value.toDouble());
    } else if (value.isComplexDouble()) {
      const c10::complex<double> z = value.toComplexDouble();
      kinds |= kinds_of_number(z.real()) | kinds_of_number(z.imag());
    }
  }
  return kinds;
}

std::vector<InputSummary> summarise_inputs(const CallContext& call) {
  std::vector<InputSummary> inputs;
  for (const TensorArgument& argument : tensor_arguments(call)) {
    if (inputs.size() == kMaxReportedInputs) break;
    InputSummary input;
    input.name = argument.name;
    input.dtype = dtype_name(argument.tensor);
    input.overwritten = argument.overwritten;
    const at::Tensor tensor = scannable_values(argument.tensor);
    const at::Tensor& shaped = tensor.defined() ? tensor : argument.tensor;
    if (!shaped.is_nested()) input.shape = shaped.sizes().vec();
    if (tensor.defined() && !argument.overwritten) input.tally = compute_stats(tensor).tally;
    inputs.push_back(std::move(input));
  }
  return inputs;
}

bool is_parameter(const at::Tensor& tensor) {
  const at::TensorBase whole = tensor.is_view() ? tensor._base() : tensor;
  return whole.requires_grad() && whole.is_leaf();
}

std::string dtype_name(const at::Tensor& tensor) { return std::string(c10::getDtypeNames(tensor.scalar_type()).first); }

}  // namespace torchnan
