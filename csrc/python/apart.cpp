#include <torch/csrc/utils/pybind.h>  // must be first: converts tensors to and from Python

#include "python/apart.h"

#include <thread>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Generator.h>

#include "detection/thread_state.h"
#include "intercept/install_interceptor.h"
#include "base/dispatch_key.h"
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

py::object run_apart(const py::function& run, bool is_step) {
  // Parts of an explanation, and of a step that is replayed, belong to the same replay.
  const bool is_inside = of_thread != nullptr && (is_step || of_thread->work() == Apart::Work::kGraph);
  if (is_inside) return run();
  install_interceptor();  // draws are seen by its key, and there may have been no session yet
  const Apart apart(is_step ? Apart::Work::kStep : Apart::Work::kGraph);
  return run();
}

// Returns the generator from which this thread draws for a device: the copy if it runs something apart.
at::Generator generator_of(const std::string& device) {
  if (of_thread == nullptr) throw std::logic_error("this thread runs nothing apart from the program");
  return of_thread->generators().of_device(c10::Device(device));
}

// Returns the generator from which this thread draws in place of one of the program's.
at::Generator in_place_of(at::Generator generator) {
  return of_thread == nullptr ? generator : of_thread->generators().copy_of(generator);
}

// Makes a Python object, of a subclass of torch.Generator, stand for a generator.
void stand_for(const py::handle& object, const at::Generator& generator) {
  if (!THPGenerator_Check(object.ptr())) throw py::type_error("a torch.Generator is expected");
  reinterpret_cast<THPGenerator*>(object.ptr())->cdata = generator;
}

}  // namespace

Apart* Apart::current() noexcept { return of_thread; }

// Draws have to be seen also where no session watches: the key stays on.
Apart::Apart(Work work)
    : work_(work), outer_(of_thread), as_new_(state_of_a_new_thread()), generators_(work == Work::kStep) {
  const PyThreadState* const thread = PyThreadState_Get();
  profiler_ = {thread->c_profilefunc, py::reinterpret_borrow<py::object>(thread->c_profileobj)};
  tracer_ = {thread->c_tracefunc, py::reinterpret_borrow<py::object>(thread->c_traceobj)};
  if (profiler_.function != nullptr) PyEval_SetProfile(nullptr, nullptr);
  if (tracer_.function != nullptr) PyEval_SetTrace(nullptr, nullptr);
  ThreadState::current().suspend();
  ThreadState::current().private_generators = &generators_;
  if (work_ == Work::kGraph) end_stack_here();
  c10::impl::tls_set_dispatch_key_included(kInterceptorKey, true);
  of_thread = this;
}

Apart::~Apart() {
  of_thread = outer_;
  if (work_ == Work::kGraph) continue_stack();
  ThreadState::current().private_generators = outer_ == nullptr ? nullptr : &outer_->generators_;
  ThreadState::current().resume();
  if (tracer_.function != nullptr) PyEval_SetTrace(tracer_.function, tracer_.argument.ptr());
  if (profiler_.function != nullptr) PyEval_SetProfile(profiler_.function, profiler_.argument.ptr());
}

void bind_apart(py::module_& m) {
  m.def("run_apart", &run_apart, py::arg("run"), py::arg("is_step"));
  m.def("is_apart", [] { return of_thread != nullptr; });
  m.def("private_generator", &in_place_of, py::arg("generator"));
  m.def("stand_for", &stand_for, py::arg("object"), py::arg("generator"));
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
