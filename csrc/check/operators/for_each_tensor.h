// The tensors of an argument or of a result.
#pragma once

#include <cstdint>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "check/bounds/operand.h"

namespace torchnan {

// Calls visit(tensor, element) for each defined tensor; `element` is its index in the list, -1 if it is in none.
template <typename Visit>
void for_each_tensor(const Operand& operand, Visit&& visit) {
  if (operand.kind == Operand::Kind::kTensor) visit(*operand.tensor, int64_t{-1});
  if (operand.kind != Operand::Kind::kValues) return;
  const auto* values = static_cast<const c10::IValue*>(operand.first);
  for (size_t i = 0; i < operand.count; ++i) {
    if (values[i].isTensor() && values[i].toTensor().defined()) visit(values[i].toTensor(), static_cast<int64_t>(i));
  }
}

template <typename Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  for_each_tensor(operand(value), std::forward<Visit>(visit));
}

// Returns the argument with replace(tensor) in place of each of its tensors, also of those in lists.
template <typename Replace>
c10::IValue with_tensors(const c10::IValue& argument, Replace&& replace) {
  if (argument.isTensor()) return replace(argument.toTensor());
  if (!argument.isList()) return argument;
  const c10::List<c10::IValue> given = argument.toList();
  c10::impl::GenericList replaced(given.elementType());
  for (const c10::IValue& element : given.vec()) replaced.push_back(with_tensors(element, replace));
  return replaced;
}

// Calls visit(tensor, output) for each defined tensor of a result, and numbers outputs from `first` on: those that are
// undefined count too. Returns the number of the output that comes next.
template <typename Visit>
int64_t for_each_output(const c10::IValue& value, int64_t first, Visit&& visit) {
  const Operand all = operand(value);
  for_each_tensor(
      all, [&](const at::Tensor& tensor, int64_t element) { visit(tensor, first + (element < 0 ? 0 : element)); });
  return first + (all.kind == Operand::Kind::kValues ? static_cast<int64_t>(all.count) : 1);
}

}  // namespace torchnan
