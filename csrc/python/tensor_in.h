// Reads tensors out of Python objects.
#pragma once

#include <pybind11/pybind11.h>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/python_variable.h>

namespace torchnan {

// Returns the tensor that an object is; null if it is none, or if there is no object. Valid as long as the object.
inline const at::Tensor* tensor_in(const pybind11::handle& value) {
  return value && THPVariable_Check(value.ptr()) ? &THPVariable_Unpack(value.ptr()) : nullptr;
}

}  // namespace torchnan
