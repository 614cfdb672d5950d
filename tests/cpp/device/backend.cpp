// Operations of the lagging device.
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "device/lagging_device.h"
#include "base/dispatch_key.h"

namespace torchnan::lagging {
namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator(), kKeys, c10::dtype_or_default(dtype));
}

at::Tensor& set_storage(at::Tensor& tensor, at::Storage storage, int64_t offset, c10::IntArrayRef size,
                        c10::IntArrayRef stride) {
  return at::native::set_storage_cpu_(tensor, std::move(storage), offset, size, stride);
}

// -- operations

constexpr c10::DispatchKeySet kAbove =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::DispatchKeySet(kInterceptorKey);

// A tensor without a reference to its memory, for a queued operation.
struct Shape {
  void* data;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  at::ScalarType dtype;
  bool is_conj;
  bool is_neg;

  explicit Shape(const at::Tensor& tensor)
      : data(tensor.data_ptr()),
        sizes(tensor.sizes().vec()),
        strides(tensor.strides().vec()),
        dtype(tensor.scalar_type()),
        is_conj(tensor.is_conj()),
        is_neg(tensor.is_neg()) {}

  at::Tensor on_host() const {
    const at::Tensor tensor = at::from_blob(data, sizes, strides, at::TensorOptions(dtype));
    tensor._set_conj(is_conj);
    tensor._set_neg(is_neg);
    return tensor;
  }
};

bool is_here(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().device().type() == kType;
}

// Each tensor of this device replaced, those in lists as well.
template <typename Replace>
c10::IValue replaced(const c10::IValue& value, Replace&& replace) {
  if (is_here(value)) return replace(value.toTensor());
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor ? std::optional(replaced(*tensor, replace).toTensor()) : std::nullopt);
    }
    return list;
  }
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(replaced(tensor, replace).toTensor());
  return list;
}

c10::IValue on_device(const c10::IValue& value, c10::Device device) {
  const auto copied = [device](const at::Tensor& tensor) {
    const at::Tensor made = empty_strided(tensor.sizes(), tensor.strides(), tensor.scalar_type(), {}, device, {});
    enqueue(device, [tensor, target = Shape(made)] { target.on_host().copy_(tensor); });  // after what poisons it
    return made;
  };
  if (value.isTensor()) return copied(value.toTensor());
  if (!value.isTensorList()) return value;
  c10::List<at::Tensor> list;
  for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(copied(tensor));
  return list;
}

at::Tensor without_values(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

// Returns the argument that a result is according to the schema, or nothing.
std::optional<at::Tensor> mutated_schema_argument(const c10::OperatorHandle& op, size_t result,
                                                  const torch::jit::Stack& arguments) {
  const auto& schema = op.schema();
  const auto* alias = schema.returns()[result].alias_info();
  if (alias == nullptr || !alias->isWrite()) return std::nullopt;
  for (size_t a = 0; a < schema.arguments().size(); ++a) {
    const auto* other = schema.arguments()[a].alias_info();
    if (other != nullptr && *other == *alias) return arguments[a].toTensor();
  }
  return std::nullopt;
}

// An `out` argument takes the shape of the result.
void fit(const at::Tensor& out, const at::Tensor& shape) {
  if (out.sizes() == shape.sizes()) return;
  const size_t bytes = shape.numel() * shape.element_size();
  if (out.storage().nbytes() < bytes) resize(out.storage(), bytes);
  out.unsafeGetTensorImpl()->set_sizes_and_strides(shape.sizes(), shape.strides());
}

// The results in the state in which the operation will leave them: arguments that it writes, or new memory, with the
// shapes that it computes for tensors without values.
std::vector<at::Tensor> results_of(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  torch::jit::Stack stack;
  for (const c10::IValue& argument : arguments) {
    stack.push_back(replaced(argument, [](const at::Tensor& tensor) -> c10::IValue { return without_values(tensor); }));
  }
  op.callBoxed(&stack);
  std::vector<at::Tensor> results;
  for (size_t r = 0; r < op.schema().returns().size(); ++r) {
    const at::Tensor shape = stack[r].toTensor();
    if (!shape.defined()) {  // a gradient that is not needed
      results.emplace_back();
      continue;
    }
    if (const auto written = mutated_schema_argument(op, r, arguments)) {
      fit(*written, shape);
      results.push_back(*written);
      continue;
    }
    results.push_back(empty_strided(shape.sizes(), shape.strides(), shape.scalar_type(), {}, {}, {}));
  }
  return results;
}

// For shapes that depend on the values, like nonzero() on a GPU.
void run_now(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t arguments = op.schema().arguments().size();
  const torch::jit::Stack given(stack->end() - static_cast<int64_t>(arguments), stack->end());
  c10::Device device = current_device();
  torch::jit::Stack on_host;
  for (const c10::IValue& argument : given) {
    on_host.push_back(replaced(argument, [&](const at::Tensor& tensor) -> c10::IValue {
      device = tensor.device();
      wait_for(queue_of_current_stream(device));
      if (tensor.numel() == 0) return at::empty(tensor.sizes(), tensor.scalar_type());  // an `out` that is to grow
      return Shape(tensor).on_host();
    }));
  }
  op.callBoxed(&on_host);
  torch::jit::drop(*stack, arguments);
  for (size_t r = 0; r < op.schema().returns().size(); ++r) {
    const auto written = mutated_schema_argument(op, r, given);
    if (written) fit(*written, on_host[r].toTensor());
    if (written && on_host[r].toTensor().data_ptr() != written->data_ptr()) {
      enqueue(device, [source = on_host[r].toTensor(), target = Shape(*written)] { target.on_host().copy_(source); });
    }
    stack->push_back(written ? c10::IValue(*written) : on_device(on_host[r], device));
  }
}

// Like that of a GPU, the generator advances when an operation is queued, and not when it runs.
std::optional<uint64_t> drawn_seed(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) return std::nullopt;
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  for (const c10::IValue& argument : arguments) {
    if (argument.isGenerator()) generator = argument.toGenerator();
  }
  const std::lock_guard lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

template <typename Work>
void with_seed(std::optional<uint64_t> seed, Work&& work) {
  if (!seed) return work();
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor state = generator.get_state();
  generator.set_current_seed(*seed);
  work();
  generator.set_state(state);
}

void run_later(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard unseen(kAbove);
  const torch::jit::Stack arguments(stack->end() - static_cast<int64_t>(op.schema().arguments().size()), stack->end());
  std::vector<at::Tensor> results;
  try {
    if (op.hasTag(at::Tag::dynamic_output_shape)) return run_now(op, stack);
    results = results_of(op, arguments);
  } catch (const c10::NotImplementedError&) {
    return run_now(op, stack);
  }

  const std::optional<uint64_t> seed = drawn_seed(op, arguments);
  torch::jit::Stack on_host;  // without a hold on the device's memory
  for (const c10::IValue& argument : arguments) {
    if (argument.isGenerator() && seed) {
      on_host.emplace_back(at::detail::createCPUGenerator(*seed));
      continue;
    }
    on_host.push_back(
        replaced(argument, [](const at::Tensor& tensor) -> c10::IValue { return Shape(tensor).on_host(); }));
  }
  std::vector<std::pair<size_t, Shape>> written;
  for (size_t r = 0; r < results.size(); ++r) {
    if (results[r].defined()) written.emplace_back(r, Shape(results[r]));
  }
  const auto compute = [op, on_host, written, seed] {
    const c10::impl::ExcludeDispatchKeyGuard below(kAbove);
    torch::jit::Stack stack = on_host;
    with_seed(seed, [&] { op.callBoxed(&stack); });
    for (const auto& [r, result] : written) result.on_host().copy_(stack[r].toTensor());
  };
  const c10::Device device = written.empty() ? current_device() : results[written.front().first].device();
  enqueue(device, compute);
  torch::jit::drop(*stack, arguments.size());
  for (const at::Tensor& result : results) stack->emplace_back(result);
}

const c10::OperatorHandle& operator_of(const char* name) {
  return *new c10::OperatorHandle(c10::Dispatcher::singleton().findSchemaOrThrow(name, ""));
}

// Operators that PyTorch calls on other devices instead of those of the host.
void convolve_later(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static const c10::OperatorHandle& op = operator_of("aten::convolution");
  run_later(op, stack);
}

void convolve_back_later(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  static const c10::OperatorHandle& op = operator_of("aten::convolution_backward");
  const auto weight = stack->end() - 8;  // of gradient, input, weight, and seven that say how
  stack->insert(weight + 1, c10::IValue(std::vector<int64_t>{weight->toTensor().size(0)}));
  run_later(op, stack);
}

// -- to the host and back

// All memory of the host counts as pinned: a non-blocking copy is made when the stream reaches it.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.device().type() != kType) counts().bytes_back += static_cast<int64_t>(from.nbytes());
  if (to.device().type() != kType && non_blocking) {
    enqueue(from.device(), [source = Shape(from), to] {
      const c10::impl::ExcludeDispatchKeyGuard below(kAbove);
      at::Tensor target = to;
      target.copy_(source.on_host());
    });
    return to;
  }
  if (to.device().type() != kType) {
    ++counts().copies_back;
    wait_for(queue_of_current_stream(from.device()));
    to.copy_(Shape(from).on_host());
    return to;
  }
  const bool is_from_host = from.device().type() != kType;
  const at::Tensor kept = is_from_host ? from.clone() : at::Tensor();
  enqueue(to.device(), [kept, source = Shape(is_from_host ? kept : from), target = Shape(to)] {
    target.on_host().copy_(source.on_host());
  });
  return to;
}

at::Scalar value_of(const at::Tensor& tensor) {
  ++counts().copies_back;
  counts().bytes_back += static_cast<int64_t>(tensor.nbytes());
  wait_for(queue_of_current_stream(tensor.device()));
  return Shape(tensor).on_host().item();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("set_.source_Storage", static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::native::set_));
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("_copy_from", &copy_from);
  m.impl("_local_scalar_dense", &value_of);
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolve_later>());
  m.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolve_back_later>());
}

// The fallbacks of PyTorch would copy what is to be copied first, and so on.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_later>()); }

}  // namespace
}  // namespace torchnan::lagging
