#include <torchnan/bounds.h>

#include <algorithm>
#include <cmath>

#include "check/bounds/bound_source.h"
#include "check/bounds/computation_dtype.h"
#include "check/bounds/dtype_range.h"
#include "check/bounds/kernels.h"
#include "check/bounds/operand.h"

namespace torchnan {
namespace {

using OperandKind = Operand::Kind;

const c10::IValue& value_of(const Operand& list, size_t i) { return static_cast<const c10::IValue*>(list.first)[i]; }

// The number of an operand, or of a list the one at index `element`; NaN if it is not a number.
double number_of(const Operand* from, size_t element) {
  if (from == nullptr) return NAN;
  if (from->kind == OperandKind::kNumber) return from->number;
  if (from->kind == OperandKind::kInteger) return static_cast<double>(from->integer);
  if (from->kind != OperandKind::kValues || element >= from->count) return NAN;
  const c10::IValue& value = value_of(*from, element);
  if (value.isDouble()) return value.toDouble();
  return value.isInt() ? static_cast<double>(value.toInt()) : NAN;
}

// The dtype of all tensors, if they share one and any has dimensions, as in nearly all calls; undefined otherwise.
c10::ScalarType shared_dtype(c10::ArrayRef<Operand> operands, size_t element) {
  auto shared = c10::ScalarType::Undefined;
  bool has_dimensions = false;
  for (const Operand& operand : operands) {
    const at::Tensor* tensor = tensor_of(&operand, element);
    if (tensor == nullptr) continue;
    const c10::ScalarType own = tensor->scalar_type();
    if (own != shared && shared != c10::ScalarType::Undefined) return c10::ScalarType::Undefined;
    shared = own;
    has_dimensions |= tensor->dim() > 0;
  }
  return has_dimensions && c10::isFloatingType(shared) ? shared : c10::ScalarType::Undefined;
}

// A number in a type, as it was passed or rounded.
Value number_in(const DtypeRange& range, double number, c10::ScalarType dtype) {
  const KernelNumber known = kernel_number(number, dtype);
  return {.max_abs = known.max_abs, .min_abs = known.min_abs, .nonnegative = number >= 0, .in = &range};
}

}  // namespace

RuleArguments::RuleArguments(c10::ArrayRef<Operand> operands, const BoundSource& source, size_t element)
    : operands_(operands),
      source_(source),
      element_(element),
      dtype_(shared_dtype(operands, element)),
      range_(&range_of(dtype_)) {
  if (dtype_ != c10::ScalarType::Undefined) return;
  dtype_ = computation_dtype(operands, element);
  range_ = &range_of(dtype_);
  for (const Operand& operand : operands_) {
    const at::Tensor* tensor = tensor_of(&operand, element_);
    if (tensor == nullptr || tensor->scalar_type() == dtype_) continue;
    const DtypeRange& other = range_of(tensor->scalar_type());
    if (other.limit == 0) continue;
    mixed_ = narrower(*range_, other);
    range_ = &mixed_;
  }
}

const Operand* RuleArguments::operand(size_t i) const { return i < operands_.size() ? &operands_[i] : nullptr; }

const at::Tensor* RuleArguments::tensor(size_t i) const { return tensor_of(operand(i), element_); }

bool RuleArguments::has_value(size_t i) const {
  return i < operands_.size() && operands_[i].kind != OperandKind::kNothing;
}

Bound RuleArguments::bound(size_t i) const {
  if (!has_value(i)) return {0, true};
  const at::Tensor* tensor = tensor_of(&operands_[i], element_);
  if (tensor == nullptr) {
    const double number = number_of(&operands_[i], element_);
    return {kernel_number(number, dtype_).max_abs, number >= 0};
  }
  Bound bound = source_.of(*tensor);
  if (tensor->scalar_type() != dtype_) bound.max_abs = kernel_number(bound.max_abs, dtype_).max_abs;
  return bound;
}

Value RuleArguments::operator[](size_t i) const {
  if (has_value(i) && tensor_of(&operands_[i], element_) == nullptr)
    return as_scalar(number_of(&operands_[i], element_));
  const Bound known = bound(i);
  return {.max_abs = known.max_abs, .nonnegative = known.nonnegative, .masked = known.masked, .in = range_};
}

Value RuleArguments::scalar(size_t i, double default_value) const {
  if (has_value(i)) return (*this)[i];
  Value value = exactly(default_value);
  value.in = range_;
  return value;
}

Value RuleArguments::as_scalar(double number) const { return number_in(*range_, number, dtype_); }

Value RuleArguments::divisor(size_t i) const {
  Value value = (*this)[i];
  if (tensor(i) == nullptr) return value;
  value.min_abs = min_abs(i);
  if (!value.nonnegative && value.min_abs > 0) value.nonnegative = min_value(i) > 0;  // each scans the tensor
  return value;
}

Value RuleArguments::widened_scalar(size_t i) const {
  const c10::ScalarType wide = dtype_ == c10::ScalarType::Double ? dtype_ : c10::ScalarType::Float;
  return number_in(sums(), number_of(operand(i), element_), wide);
}

double RuleArguments::max_abs(size_t i) const {
  const Bound b = bound(i);
  return b.masked ? kUnknown : b.max_abs;
}

bool RuleArguments::nonnegative(size_t i) const {
  const Bound b = bound(i);
  return b.nonnegative && !b.masked;
}

Bound RuleArguments::bound_of_all(size_t i) const {
  const Operand* list = operand(i);
  if (list == nullptr || list->kind != OperandKind::kValues) return bound(i);
  Bound all{0, true};
  for (size_t e = 0; e < list->count; ++e) {
    const c10::IValue& value = value_of(*list, e);
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    all = all.joined(source_.of(value.toTensor()));
  }
  return all;
}

double RuleArguments::min_value(size_t i) const {
  const at::Tensor* tensor = this->tensor(i);
  const double least = tensor != nullptr ? source_.min_value_of(*tensor) : number_of(operand(i), element_);
  return least > 0 ? kernel_number(least, dtype_).min_abs : 0;
}

double RuleArguments::min_abs(size_t i) const {
  const at::Tensor* tensor = this->tensor(i);
  const double least = tensor != nullptr ? source_.min_abs_of(*tensor) : number_of(operand(i), element_);
  return kernel_number(least, dtype_).min_abs;
}

Value RuleArguments::quotient(size_t i, size_t j) const {
  Value direct = (*this)[i] / divisor(j);
  const at::Tensor* x = tensor(i);
  const at::Tensor* y = tensor(j);
  if (x == nullptr || y == nullptr) return direct;
  const double by_history = source_.quotient_of(*x, *y);
  if (by_history > range_->limit || direct.max_abs <= by_history) return direct;
  return {.max_abs = by_history, .intermediate = by_history, .nonnegative = direct.nonnegative, .in = range_};
}

Value RuleArguments::reciprocal(size_t i) const {
  Value x = divisor(i);
  if (const at::Tensor* tensor = this->tensor(i)) x.min_abs = std::max(x.min_abs, source_.floor_of(*tensor));
  return exactly(1) / x;
}

// A NaN, or an argument that is not a number, gives NaN, which makes the bound unknown.
double RuleArguments::number(size_t i, double default_value) const {
  return has_value(i) ? number_of(operand(i), element_) : default_value;
}

int64_t RuleArguments::integer(size_t i, int64_t default_value) const {
  return has_value(i) && operand(i)->kind == OperandKind::kInteger ? operand(i)->integer : default_value;
}

bool RuleArguments::flag(size_t i) const { return integer(i, 0) != 0; }

c10::SmallVector<int64_t, 5> RuleArguments::integers(size_t i) const {
  c10::SmallVector<int64_t, 5> integers;
  const Operand* list = operand(i);
  if (list == nullptr) return integers;
  if (list->kind == OperandKind::kInteger) integers.push_back(list->integer);
  for (size_t e = 0; e < list->count; ++e) {
    if (list->kind == OperandKind::kIntegers) integers.push_back(static_cast<const int64_t*>(list->first)[e]);
    if (list->kind == OperandKind::kValues && value_of(*list, e).isInt())
      integers.push_back(value_of(*list, e).toInt());
  }
  return integers;
}

c10::IntArrayRef RuleArguments::sizes(size_t i) const {
  const at::Tensor* tensor = this->tensor(i);
  return tensor == nullptr ? c10::IntArrayRef() : tensor->sizes();
}

int64_t RuleArguments::numel(size_t i) const {
  const at::Tensor* tensor = this->tensor(i);
  return tensor == nullptr ? 0 : tensor->numel();
}

int64_t RuleArguments::size(size_t i, int64_t dim) const {
  const c10::IntArrayRef all = sizes(i);
  const auto rank = static_cast<int64_t>(all.size());
  if (dim < 0) dim += rank;
  return dim >= 0 && dim < rank ? all[static_cast<size_t>(dim)] : 1;
}

double RuleArguments::combinations(size_t i) const {
  const Operand* list = operand(i);
  if (list == nullptr || list->kind != OperandKind::kValues) return static_cast<double>(numel(i));
  double product = 1;
  for (size_t e = 0; e < list->count; ++e) {
    const at::Tensor* tensor = tensor_of(list, e);
    if (tensor != nullptr) product *= static_cast<double>(tensor->numel());
  }
  return product;
}

bool RuleArguments::uses_kernels_of(Kernels kernels) const {
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (const at::Tensor* tensor = this->tensor(i)) return kernels_of(tensor->device().type()) == kernels;
  }
  return false;
}

bool RuleArguments::is_contiguous(size_t i) const {
  const at::Tensor* tensor = this->tensor(i);
  return tensor == nullptr || tensor->is_contiguous();
}

bool RuleArguments::same(size_t i, size_t j) const {
  const at::Tensor* a = tensor(i);
  const at::Tensor* b = tensor(j);
  if (a == nullptr || b == nullptr) return false;
  if (a->is_same(*b)) return true;
  return a->scalar_type() == b->scalar_type() && a->is_cpu() && b->is_cpu() &&
         a->const_data_ptr() == b->const_data_ptr() && a->sizes() == b->sizes() && a->strides() == b->strides();
}

bool RuleArguments::produced_by(size_t i, std::string_view op) const {
  const at::Tensor* tensor = this->tensor(i);
  return tensor != nullptr && source_.is_made_by(*tensor, op);
}

bool RuleArguments::describes(size_t i, std::string_view op, std::initializer_list<size_t> arguments) const {
  c10::SmallVector<const at::Tensor*, 2> described;
  for (const size_t argument : arguments) described.push_back(tensor(argument));
  const bool are_tensors = std::find(described.begin(), described.end(), nullptr) == described.end();
  const at::Tensor* const description = tensor(i);
  return are_tensors && description != nullptr && source_.describes(*description, op, described);
}

// A tensor of float64 is summed in double, whatever the other arguments are.
const DtypeRange& RuleArguments::sums() const {
  if (dtype_ == c10::ScalarType::Double) return kDoubleRange;
  return range_ == &kFloatRange ? kFloatRange : kWideRange;
}

}  // namespace torchnan
