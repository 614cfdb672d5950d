#include <torch/csrc/utils/pybind.h>  // must be first: converts tensors to and from Python

#include "python/apart.h"

#include <thread>

#include <c10/core/impl/LocalDispatchKeySet.h>

#include "detection/thread_state.h"
#include "operators/dispatch_key.h"
#include "python/frame_walk.h"

namespace py = pybind11;

namespace torchnan {
namespace {

thread_local Apart* of_thread = nullptr;

const at::ThreadLocalState* of_new_thread = nullptr;  // guarded by the GIL; never destroyed: threads may outlive it

const at::ThreadLocalState& state_of_a_new_thread() {
  if (of_new_thread == nullptr) std::thread([] { of_new_thread = new at::ThreadLocalState; }).join();
  return *of_new_thread;
}

py::object run_apart(const py::function& run) {
  if (of_thread != nullptr) return run();
  const Apart apart;
  return run();
}

// Returns the generator from which this thread draws for a device: the copy if it runs something apart.
at::Generator generator_of(const std::string& device) {
  if (of_thread == nullptr) throw std::logic_error("this thread runs nothing apart from the program");
  return of_thread->generators().of_device(c10::Device(device));
}

}  // namespace

Apart* Apart::current() noexcept { return of_thread; }

// Draws have to be seen also where no session watches: the key stays on.
Apart::Apart() : as_new_(state_of_a_new_thread()) {
  const PyThreadState* const thread = PyThreadState_Get();
  profiler_ = {thread->c_profilefunc, py::reinterpret_borrow<py::object>(thread->c_profileobj)};
  tracer_ = {thread->c_tracefunc, py::reinterpret_borrow<py::object>(thread->c_traceobj)};
  if (profiler_.function != nullptr) PyEval_SetProfile(nullptr, nullptr);
  if (tracer_.function != nullptr) PyEval_SetTrace(nullptr, nullptr);
  ThreadState::current().suspend();
  ThreadState::current().private_generators = &generators_;
  end_stack_here();
  c10::impl::tls_set_dispatch_key_included(kInterceptorKey, true);
  of_thread = this;
}

Apart::~Apart() {
  of_thread = nullptr;
  continue_stack();
  ThreadState::current().private_generators = nullptr;
  ThreadState::current().resume();
  if (tracer_.function != nullptr) PyEval_SetTrace(tracer_.function, tracer_.argument.ptr());
  if (profiler_.function != nullptr) PyEval_SetProfile(profiler_.function, profiler_.argument.ptr());
}

void bind_apart(py::module_& m) {
  m.def("run_apart", &run_apart, py::arg("run"));
  m.def("private_random_state", [](const std::string& device) {
    at::Generator generator = generator_of(device);
    return generator.get_state();
  });
  m.def("set_private_random_state", [](const std::string& device, const at::Tensor& state) {
    at::Generator generator = generator_of(device);
    generator.set_state(state);
  });
}

}  // namespace torchnan
