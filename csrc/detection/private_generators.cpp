#include "detection/private_generators.h"

#include <algorithm>
#include <mutex>
#include <optional>

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

namespace torchnan {
namespace {

// Returns the device of what a call makes: that of its first tensor, or else the one that it is given.
c10::Device device_of(c10::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::Device> given;
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) return argument.toTensor().device();
    if (argument.isDevice() && !given) given = argument.toDevice();
  }
  return given.value_or(at::kCPU);
}

// Whether an operator has no kernel for a device, and calls other operators there.
bool is_made_of_others(const c10::OperatorHandle& op, c10::Device device) {
  const auto has_kernel = [&](c10::DispatchKey key) { return op.hasKernelForDispatchKey(key); };
  return !has_kernel(c10::computeDispatchKey(std::nullopt, std::nullopt, device)) &&
         (has_kernel(c10::DispatchKey::CompositeExplicitAutograd) ||
          has_kernel(c10::DispatchKey::CompositeImplicitAutograd));
}

}  // namespace

at::Generator PrivateGenerators::of_device(c10::Device device) {
  return copy_of(at::globalContext().defaultGenerator(device));
}

at::Generator PrivateGenerators::copy_of(at::Generator original) {
  const auto is_copy = [&](const auto& known) { return known.second == original; };
  if (std::any_of(copies_.begin(), copies_.end(), is_copy)) return original;
  at::Generator& copy = copies_[original.unsafeGetGeneratorImpl()];
  if (!copy.defined()) {
    const std::lock_guard lock(original.mutex());
    copy = original.clone();
  }
  return copy;
}

void PrivateGenerators::replace_in(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const auto& declared = op.schema().arguments();
  const size_t first = stack.size() - declared.size();
  const c10::Device device = device_of(torch::jit::last(stack, declared.size()));
  if (device.is_meta()) return;
  for (size_t i = 0; i < declared.size(); ++i) {
    const c10::TypePtr type = declared[i].type();
    const auto optional = type->cast<c10::OptionalType>();
    if ((optional ? optional->getElementType() : type)->kind() != c10::TypeKind::GeneratorType) continue;
    c10::IValue& given = stack[first + i];
    given = given.isNone() ? of_device(device) : copy_of(given.toGenerator());
    return;
  }
  const bool draws = op.hasTag(at::Tag::nondeterministic_seeded) && !device.is_cpu();
  TORCH_CHECK(!draws || is_made_of_others(op, device), op.schema().name(), " draws from the generator of ", device,
              ", and cannot be given another");
}

}  // namespace torchnan
