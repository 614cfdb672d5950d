#include "python/bindings.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/DynamicCast.h>
#include <torch/csrc/autograd/python_variable.h>

namespace py = pybind11;

namespace torchnan {
namespace {

// The first element of a tensor whose elements lie in the memory of the host as they are; null for every other.
const char* host_memory(const py::handle& value) {
  if (!THPVariable_Check(value.ptr())) return nullptr;
  const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
  if (!tensor.is_cpu() || tensor.layout() != at::kStrided || !tensor.has_storage() || tensor.is_conj() ||
      tensor.is_neg() || tensor.key_set().has(c10::DispatchKey::Python)) {
    return nullptr;
  }
  return static_cast<const char*>(tensor.const_data_ptr());  // memory that is shared until it is written stays shared
}

bool is_number(c10::ScalarType dtype) {
  return dtype == at::kDouble || dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16 ||
         c10::isIntegralType(dtype, /*includeBool=*/true);
}

py::list host_numbers(const py::list& tensors) {
  py::list numbers;
  for (const py::handle tensor : tensors) {
    const char* const memory = host_memory(tensor);
    const bool is_read = memory != nullptr && is_number(THPVariable_Unpack(tensor.ptr()).scalar_type()) &&
                         THPVariable_Unpack(tensor.ptr()).numel() == 1;
    if (is_read) {
      numbers.append(c10::fetch_and_cast<double>(THPVariable_Unpack(tensor.ptr()).scalar_type(), memory));
    } else {
      numbers.append(py::none());
    }
  }
  return numbers;
}

// Copies every `step`-th element, counted row by row.
void copy_elements(const at::Tensor& tensor, const char* from, int64_t step, char* to) {
  const size_t size = tensor.element_size();
  if (tensor.is_contiguous()) {
    for (int64_t i = 0; i < tensor.numel(); i += step, to += size) std::memcpy(to, from + i * size, size);
    return;
  }
  const at::IntArrayRef sizes = tensor.sizes();
  const at::IntArrayRef strides = tensor.strides();
  for (int64_t i = 0; i < tensor.numel(); i += step, to += size) {
    int64_t rest = i;
    int64_t at = 0;
    for (int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
      at += rest % sizes[dim] * strides[dim];
      rest /= sizes[dim];
    }
    std::memcpy(to, from + at * static_cast<int64_t>(size), size);
  }
}

py::object host_sample(const py::handle& value, int64_t step) {
  const char* const memory = host_memory(value);
  if (memory == nullptr) return py::none();
  const at::Tensor& tensor = THPVariable_Unpack(value.ptr());
  const int64_t count = (tensor.numel() + step - 1) / step;
  auto sample = py::reinterpret_steal<py::object>(
      PyBytes_FromStringAndSize(nullptr, count * static_cast<int64_t>(tensor.element_size())));
  if (!sample) throw py::error_already_set();
  copy_elements(tensor, memory, step, PyBytes_AS_STRING(sample.ptr()));
  return sample;
}

}  // namespace

void bind_host_memory(py::module_& m) {
  m.def("host_numbers", &host_numbers, py::arg("tensors"));
  m.def("host_sample", &host_sample, py::arg("tensor"), py::arg("step"));
}

}  // namespace torchnan
