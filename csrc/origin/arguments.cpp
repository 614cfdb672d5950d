#include "origin/arguments.h"

#include <cmath>

#include <fmt/format.h>

#include "check/tensor_check.h"

namespace torchnan {
namespace {

constexpr size_t kMaxInputsTold = 16;

Kinds kinds_of_number(double x) {
  if (std::isnan(x)) return Kinds::of_nan();
  if (!std::isinf(x)) return {};
  return x > 0 ? Kinds::of_posinf() : Kinds::of_neginf();
}

}  // namespace

std::vector<TensorArgument> tensor_arguments(const CallFacts& call) {
  std::vector<TensorArgument> found;
  for (size_t k = 0; k < call.kept.size(); ++k) {
    const std::string& name = call.plan.argument_names[call.plan.kept_arguments[k]];
    const OpPlan::Written* written = call.plan.written_at(k);
    if (written != nullptr && !written->reads_old_values) continue;
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

at::Tensor target_of_move(const CallFacts& call) {
  if (!call.plan.moves_values) return {};
  for (const OpPlan::Written& written : call.plan.written) {
    const c10::IValue& target = call.kept[written.kept];
    if (!written.reads_old_values && target.isTensor()) return readable(target.toTensor());
  }
  return {};
}

Kinds kinds_of_numbers(const CallFacts& call) {
  Kinds kinds;
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

std::vector<InputSummary> summarise_inputs(const CallFacts& call) {
  std::vector<InputSummary> inputs;
  for (const TensorArgument& argument : tensor_arguments(call)) {
    if (inputs.size() == kMaxInputsTold) break;
    InputSummary input;
    input.name = argument.name;
    input.dtype = dtype_name(argument.tensor);
    input.overwritten = argument.overwritten;
    const at::Tensor tensor = readable(argument.tensor);
    const at::Tensor& shaped = tensor.defined() ? tensor : argument.tensor;
    if (!shaped.is_nested()) input.shape = shaped.sizes().vec();
    if (tensor.defined() && !argument.overwritten) input.tally = take_census(tensor).tally;
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
