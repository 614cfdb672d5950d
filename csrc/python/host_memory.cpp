#include "python/bindings.h"

#include <cstring>

#include <ATen/core/Tensor.h>
#include <c10/core/DynamicCast.h>

#include "python/tensor_in.h"
#include "check/scan/tensor_scan.h"

namespace py = pybind11;

namespace torchnan {
namespace {

// Memory that is shared until somebody writes to it stays shared.
const char* memory_of(const at::Tensor& tensor) { return static_cast<const char*>(tensor.const_data_ptr()); }

// Returns the tensor that an object is if its elements lie in the memory of the host as they are; else null.
const at::Tensor* on_host(const py::handle& object) {
  const at::Tensor* const tensor = tensor_in(object);
  const bool is_found = tensor != nullptr && is_dense_on_host(*tensor->unsafeGetTensorImpl()) && !tensor->is_conj() &&
                        !tensor->is_neg() && memory_of(*tensor) != nullptr;
  return is_found ? tensor : nullptr;
}

bool is_number(c10::ScalarType dtype) {
  return dtype == at::kDouble || dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16 ||
         c10::isIntegralType(dtype, /*includeBool=*/true);
}

py::list host_numbers(const py::list& objects) {
  py::list numbers;
  for (const py::handle object : objects) {
    const at::Tensor* const tensor = on_host(object);
    if (tensor != nullptr && is_number(tensor->scalar_type()) && tensor->numel() == 1) {
      numbers.append(c10::fetch_and_cast<double>(tensor->scalar_type(), memory_of(*tensor)));
    } else {
      numbers.append(py::none());
    }
  }
  return numbers;
}

// Copies every `step`-th element, counted row by row.
void copy_elements(const at::Tensor& tensor, int64_t step, char* to) {
  const char* const from = memory_of(tensor);
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

py::object host_sample(const py::handle& object, int64_t step) {
  const at::Tensor* const tensor = on_host(object);
  if (tensor == nullptr) return py::none();
  const int64_t count = (tensor->numel() + step - 1) / step;
  const auto bytes = count * static_cast<int64_t>(tensor->element_size());
  auto sample = py::reinterpret_steal<py::object>(PyBytes_FromStringAndSize(nullptr, bytes));
  if (!sample) throw py::error_already_set();
  copy_elements(*tensor, step, PyBytes_AS_STRING(sample.ptr()));
  return sample;
}

}  // namespace

void bind_host_memory(py::module_& m) {
  m.def("host_numbers", &host_numbers, py::arg("tensors"));
  m.def("host_sample", &host_sample, py::arg("tensor"), py::arg("step"));
}

}  // namespace torchnan
