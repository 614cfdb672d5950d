// Keeps torchnan's own Python code out of what user code compiles or overrides.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <pybind11/pybind11.h>

namespace torchnan {

// PyTorch's function of this name, once it was needed. Guarded by the GIL.
inline PyObject* set_eval_frame = nullptr;

// Requires the GIL. Otherwise Dynamo would compile torchnan's frames, which run inside an operation, and a
// TorchFunctionMode would see torchnan's accesses to tensors.
class FunctionModeGuard {
 public:
  FunctionModeGuard()
      : callback_(pybind11::handle(find_set_eval_frame())(pybind11::none())),
        function_state_(State::get_disabled_state()) {
    State::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~FunctionModeGuard() {
    State::set_disabled_state(function_state_);
    const auto ours = pybind11::reinterpret_steal<pybind11::object>(
        PyObject_CallFunctionObjArgs(set_eval_frame, callback_.ptr(), nullptr));
    if (!ours) PyErr_WriteUnraisable(set_eval_frame);
  }
  FunctionModeGuard(const FunctionModeGuard&) = delete;
  FunctionModeGuard& operator=(const FunctionModeGuard&) = delete;

 private:
  using State = at::impl::PythonTorchFunctionTLS;

  static PyObject* find_set_eval_frame() {
    if (set_eval_frame == nullptr) {
      const auto module = pybind11::module_::import("torch._C._dynamo.eval_frame");
      set_eval_frame = pybind11::object(module.attr("set_eval_frame")).release().ptr();
    }
    return set_eval_frame;
  }

  const pybind11::object callback_;
  const at::impl::TorchFunctionDisabledState function_state_;
};

}  // namespace torchnan
