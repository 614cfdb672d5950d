// While torchnan's own Python runs inside the program's: it is no part of what the program compiles or overrides.
#pragma once

#include <ATen/PythonTorchFunctionTLS.h>
#include <pybind11/pybind11.h>

namespace torchnan {

// With the GIL. Dynamo's callback would compile our frames, which come in the middle of an operation, and a
// TorchFunctionMode would be told of what we ask a tensor.
class Aside {
 public:
  Aside() : callback_(set_eval_frame(pybind11::none())), function_state_(State::get_disabled_state()) {
    State::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~Aside() {
    State::set_disabled_state(function_state_);
    set_eval_frame(callback_);
  }
  Aside(const Aside&) = delete;
  Aside& operator=(const Aside&) = delete;

 private:
  using State = at::impl::PythonTorchFunctionTLS;

  static pybind11::object set_eval_frame(const pybind11::object& callback) {
    return pybind11::module_::import("torch._C._dynamo.eval_frame").attr("set_eval_frame")(callback);
  }

  const pybind11::object callback_;
  const at::impl::TorchFunctionDisabledState function_state_;
};

}  // namespace torchnan
