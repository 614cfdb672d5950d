#include "python/lock_discipline.h"

#include <torch/version.h>

#include "base/fork_safe_mutex.h"
#include "base/held_locks.h"

#include <atomic>
#include <mutex>

// Since PyTorch 2.13, a tensor or storage that Python references takes the GIL when C++ makes a second reference to it,
// and when that reference goes away. Releases differ in the calls that they make; this code is for one release.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 13
#include <c10/core/impl/PyInterpreter.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>

namespace torchnan {
namespace {

std::atomic<int64_t> found{0};

void check_locks() {
  if (PyGILState_Check() == 0 && holds_lock()) ++found;
}

// Wraps PyTorch's calls into Python, and checks the held locks first.
class CheckedInterpreter final : public c10::impl::PyInterpreterVTable {
 public:
  explicit CheckedInterpreter(const c10::impl::PyInterpreterVTable& python) : python_(python) {}

  std::string name() const override { return python_.name(); }
  void incref(PyObject* pyobj) const override {
    check_locks();
    python_.incref(pyobj);
  }
  void decref(PyObject* pyobj) const override {
    check_locks();
    python_.decref(pyobj);
  }
  bool try_incref(const c10::impl::PyObjectSlot& pyobj_slot) const override {
    check_locks();
    return python_.try_incref(pyobj_slot);
  }
  size_t refcnt(PyObject* pyobj) const override { return python_.refcnt(pyobj); }
  c10::intrusive_ptr<c10::TensorImpl> detach(const c10::TensorImpl* self) const override {
    return python_.detach(self);
  }
  void dispatch(const c10::OperatorHandle& op, torch::jit::Stack* stack) const override { python_.dispatch(op, stack); }
  void reportErrorCallback(PyObject* callback, c10::DispatchKey key) const override {
    python_.reportErrorCallback(callback, key);
  }
  void python_op_registration_trampoline(const c10::OperatorHandle& op, c10::DispatchKey a1, c10::DispatchKeySet keyset,
                                         torch::jit::Stack* stack, bool with_keyset, bool with_op) const override {
    python_.python_op_registration_trampoline(op, a1, keyset, stack, with_keyset, with_op);
  }
  void throw_abstract_impl_not_imported_error(std::string opname, const char* pymodule,
                                              const char* context) const override {
    python_.throw_abstract_impl_not_imported_error(opname, pymodule, context);
  }
  void python_dispatcher(const c10::OperatorHandle& op, c10::DispatchKeySet a1,
                         torch::jit::Stack* stack) const override {
    python_.python_dispatcher(op, a1, stack);
  }
  bool is_contiguous(const c10::TensorImpl* self, at::MemoryFormat a1) const override {
    return python_.is_contiguous(self, a1);
  }
  c10::SymBool sym_is_contiguous(const c10::TensorImpl* self, at::MemoryFormat a1) const override {
    return python_.sym_is_contiguous(self, a1);
  }
  bool is_strides_like(const c10::TensorImpl* self, at::MemoryFormat a1) const override {
    return python_.is_strides_like(self, a1);
  }
  bool is_non_overlapping_and_dense(const c10::TensorImpl* self) const override {
    return python_.is_non_overlapping_and_dense(self);
  }
  c10::Device device(const c10::TensorImpl* self) const override { return python_.device(self); }
  int64_t dim(const c10::TensorImpl* self) const override { return python_.dim(self); }
  c10::IntArrayRef strides(const c10::TensorImpl* self) const override { return python_.strides(self); }
  c10::IntArrayRef sizes(const c10::TensorImpl* self) const override { return python_.sizes(self); }
  c10::SymIntArrayRef sym_sizes(const c10::TensorImpl* self) const override { return python_.sym_sizes(self); }
  c10::Layout layout(const c10::TensorImpl* self) const override { return python_.layout(self); }
  int64_t numel(const c10::TensorImpl* self) const override { return python_.numel(self); }
  c10::SymInt sym_numel(const c10::TensorImpl* self) const override { return python_.sym_numel(self); }
  c10::SymIntArrayRef sym_strides(const c10::TensorImpl* self) const override { return python_.sym_strides(self); }
  c10::SymInt sym_storage_offset(const c10::TensorImpl* self) const override {
    return python_.sym_storage_offset(self);
  }
  void trace_gpu_event_creation(c10::DeviceType device_type, uintptr_t event) const override {
    python_.trace_gpu_event_creation(device_type, event);
  }
  void trace_gpu_event_deletion(c10::DeviceType device_type, uintptr_t event) const override {
    python_.trace_gpu_event_deletion(device_type, event);
  }
  void trace_gpu_event_record(c10::DeviceType device_type, uintptr_t event, uintptr_t stream) const override {
    python_.trace_gpu_event_record(device_type, event, stream);
  }
  void trace_gpu_event_wait(c10::DeviceType device_type, uintptr_t event, uintptr_t stream) const override {
    python_.trace_gpu_event_wait(device_type, event, stream);
  }
  void trace_gpu_memory_allocation(c10::DeviceType device_type, uintptr_t ptr) const override {
    python_.trace_gpu_memory_allocation(device_type, ptr);
  }
  void trace_gpu_memory_deallocation(c10::DeviceType device_type, uintptr_t ptr) const override {
    python_.trace_gpu_memory_deallocation(device_type, ptr);
  }
  void trace_gpu_stream_creation(c10::DeviceType device_type, uintptr_t stream) const override {
    python_.trace_gpu_stream_creation(device_type, stream);
  }
  void trace_gpu_device_synchronization(c10::DeviceType device_type) const override {
    python_.trace_gpu_device_synchronization(device_type);
  }
  void trace_gpu_stream_synchronization(c10::DeviceType device_type, uintptr_t stream) const override {
    python_.trace_gpu_stream_synchronization(device_type, stream);
  }
  void trace_gpu_event_synchronization(c10::DeviceType device_type, uintptr_t event) const override {
    python_.trace_gpu_event_synchronization(device_type, event);
  }
  void reset_backward_hooks(const c10::TensorImpl* self) const override { python_.reset_backward_hooks(self); }

 private:
  const c10::impl::PyInterpreterVTable& python_;
};

}  // namespace

void check_lock_discipline() {
  c10::impl::PyInterpreter& interpreter = *getPyInterpreter();
  static const auto& checked = *new CheckedInterpreter(*interpreter.vtable_);
  interpreter.vtable_ = &checked;
}

int64_t gil_waits_under_lock() { return found; }

void wait_for_gil_under_lock(const pybind11::object& tensor) {
  const at::Tensor& referenced = THPVariable_Unpack(tensor.ptr());
  ForkSafeMutex mutex;
  const pybind11::gil_scoped_release no_gil;
  const std::lock_guard lock(mutex);
  const at::Tensor second = referenced;
}

}  // namespace torchnan

#else

namespace torchnan {

void check_lock_discipline() {}
int64_t gil_waits_under_lock() { return 0; }
void wait_for_gil_under_lock(const pybind11::object&) {}

}  // namespace torchnan

#endif
