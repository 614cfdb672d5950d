#include "detection/private_generators.h"

#include <algorithm>
#include <cstring>
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

// Returns the default generator of a device; undefined if it has none.
at::Generator default_of(c10::Device device) {
  try {
    return at::globalContext().defaultGenerator(device);
  } catch (const c10::Error&) {
    return {};
  }
}

void set_state_of(at::Generator& generator, const at::Tensor& state) {
  const std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

bool is_same_state(const at::Tensor& one, const at::Tensor& other) {
  return one.nbytes() == other.nbytes() && std::memcmp(one.const_data_ptr(), other.const_data_ptr(), one.nbytes()) == 0;
}

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

at::Generator PrivateGenerators::in_place_of(const at::Generator& given) {
  if (!of_step_ || given == default_of(given.device())) return copy_of(given);
  if (before_.count(given.unsafeGetGeneratorImpl()) == 0) {
    before_.emplace(given.unsafeGetGeneratorImpl(), std::make_pair(given, state_of(given)));
  }
  return given;
}

PrivateGenerators::~PrivateGenerators() {
  for (auto& [implementation, kept] : before_) set_state_of(kept.first, kept.second);
}

PrivateGenerators::Lent::Lent(at::Generator original, at::Generator copy)
    : original_(std::move(original)), copy_(std::move(copy)), given_(state_of(copy_)) {
  kept_ = state_of(original_);
  set_state_of(original_, given_);
}

PrivateGenerators::Lent::~Lent() {
  const at::Tensor after = state_of(original_);
  set_state_of(original_, kept_);
  if (!is_same_state(after, given_)) set_state_of(copy_, after);
}

void PrivateGenerators::replace_in(const c10::OperatorHandle& op, torch::jit::Stack& stack, std::optional<Lent>& lent) {
  const auto& declared = op.schema().arguments();
  const size_t first = stack.size() - declared.size();
  const c10::Device device = device_of(torch::jit::last(stack, declared.size()));
  if (device.is_meta()) return;
  for (size_t i = 0; i < declared.size(); ++i) {
    const c10::TypePtr type = declared[i].type();
    const auto optional = type->cast<c10::OptionalType>();
    if ((optional ? optional->getElementType() : type)->kind() != c10::TypeKind::GeneratorType) continue;
    c10::IValue& given = stack[first + i];
    given = given.isNone() ? of_device(device) : in_place_of(given.toGenerator());
    return;
  }
  const bool draws = op.hasTag(at::Tag::nondeterministic_seeded);
  const bool may_draw = draws || !op.schema().name().starts_with("aten::");  // only those have the tag
  if (!may_draw || device.is_cpu() || is_made_of_others(op, device)) return;
  const at::Generator original = default_of(device);
  TORCH_CHECK(original.defined() || !draws, op.schema().name(), " draws from the generator of ", device,
              ", and cannot be given another");
  if (original.defined()) lent.emplace(original, copy_of(original));
}

}  // namespace torchnan
