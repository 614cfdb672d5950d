#include "check/bounds/operand.h"

namespace torchnan {

Operand operand(const c10::IValue& value) {
  if (value.isTensor()) return operand(value.toTensor());
  if (value.isNone()) return {};
  if (value.isDouble()) return operand(value.toDouble());
  if (value.isInt()) return operand(value.toInt());
  if (value.isBool()) return operand(value.toBool());
  if (!value.isList()) return unsupported_operand();
  Operand made;
  made.kind = Operand::Kind::kValues;
  made.first = value.toListRef().data();
  made.count = value.toListRef().size();
  return made;
}

const at::Tensor* tensor_in_list(const Operand& list, size_t element) {
  if (element >= list.count) return nullptr;
  const c10::IValue& value = static_cast<const c10::IValue*>(list.first)[element];
  return value.isTensor() && value.toTensor().defined() ? &value.toTensor() : nullptr;
}

}  // namespace torchnan
