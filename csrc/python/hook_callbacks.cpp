#include <torch/csrc/utils/pybind.h>  // must be first: converts tensors to and from Python

#include "python/bindings.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/util/SmallVector.h>
#include <pybind11/stl.h>
#include <torch/csrc/Storage.h>
#include <torch/csrc/autograd/python_variable.h>

#include "intercept/harm_checks.h"
#include "check/bounds/bound_cache.h"
#include "origin/call_site_ring.h"
#include "detection/error_containment.h"
#include "detection/session.h"
#include "detection/thread_state.h"
#include "device/devices.h"
#include "origin/collectives.h"
#include "origin/nonfinite_registry.h"
#include "python/compiled_regions.h"
#include "python/frame_walk.h"
#include "python/kept_inputs.h"
#include "python/region_call.h"
#include "python/tensor_in.h"
#include "check/scan/storage_of.h"
#include "check/scan/tensor_scan.h"

namespace py = pybind11;

namespace torchnan {
namespace {

// The roots and gradients for autograd's engine.
struct Roots {
  c10::SmallVector<at::Tensor, 2> tensors;
  c10::SmallVector<at::Tensor, 2> gradients;
};

// Adds a root. A wrapper subclass has its values in tensors inside: a DTensor the part of this rank.
void add_root(const py::handle& root, const py::handle& gradient, Roots& found) {
  const at::Tensor* tensor = tensor_in(root);
  if (tensor == nullptr) return;  // an edge of a graph
  const bool is_subclass = tensor->unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python);
  if (!is_subclass || !py::hasattr(root, "__tensor_flatten__")) {
    const at::Tensor* its_gradient = tensor_in(gradient);
    found.tensors.push_back(*tensor);
    found.gradients.push_back(its_gradient == nullptr ? at::Tensor() : *its_gradient);
    return;
  }
  const bool is_alike = gradient && py::type::handle_of(gradient).is(py::type::handle_of(root));
  const py::tuple flattened = root.attr("__tensor_flatten__")();
  for (const py::handle name : py::list(flattened[0])) {
    const py::object part = root.attr(name);
    const py::object its_part = is_alike ? py::object(gradient.attr(name)) : py::object();
    add_root(part, its_part, found);
  }
}

// A gradient may be None.
Roots roots_from(const py::handle& roots, const py::handle& gradients) {
  Roots found;
  auto gradient = py::iter(gradients);
  for (const py::handle root : py::iter(roots)) {
    const py::handle its_gradient = gradient == py::iterator::sentinel() ? py::handle() : *gradient;
    if (its_gradient) ++gradient;
    add_root(root, its_gradient, found);
  }
  return found;
}

void check_backward_roots(const py::handle& roots, const py::handle& gradients) {
  const auto session = is_replaying() ? nullptr : ThreadState::current().shared_session();
  if (session == nullptr || !PyTuple_Check(roots.ptr()) || !PyTuple_Check(gradients.ptr())) return;
  run_contained(*session, "checking the roots of backward", [&] {
    const Roots given = roots_from(roots, gradients);
    note_root_gradients(given.gradients);
    const py::gil_scoped_release no_gil;
    report_backward_roots(*session, given.tensors, given.gradients);
  });
}

// Reports a read by other means than an operation. Objects that are not tensors are left for PyTorch to reject.
void report_read(const py::handle& tensor) {
  const bool is_needed = nonfinite_registry().in_use() || devices().in_use();
  const bool is_programs = is_needed && !is_replaying() && THPVariable_Check(tensor.ptr());
  const auto session = is_programs ? ThreadState::current().shared_session() : nullptr;
  if (session == nullptr) return;
  const at::Tensor read = THPVariable_Unpack(tensor.ptr());
  const py::gil_scoped_release no_gil;
  report_tensors(*session, HarmKind::kRead, read, [](size_t) { return std::string(); });
}

// The address for the values, if the tensor is sparse or nested. 0 if its memory cannot hold or depend on a NaN, or is
// not exposed.
uintptr_t storage_address(const py::handle& tensor) {
  if (!THPVariable_Check(tensor.ptr())) return 0;
  try {
    const at::Tensor& given = THPVariable_Unpack(tensor.ptr());
    if (is_dense_on_host(*given.unsafeGetTensorImpl())) return reinterpret_cast<uintptr_t>(storage_of(given));
    const at::Tensor on_host = scannable_values(given);
    const at::Tensor values = on_host.defined() ? on_host : *scannable(given);
    return values.defined() ? reinterpret_cast<uintptr_t>(storage_of(values)) : 0;
  } catch (const std::exception&) {
    return 0;
  }
}

// The storage of a tensor or an UntypedStorage; none if its memory cannot hold a NaN, or if the object is something
// else.
c10::Storage storage_in(const py::handle& object) {
  if (!THPVariable_Check(object.ptr())) {
    return THPStorage_Check(object.ptr()) ? THPStorage_Unpack(object.ptr()) : c10::Storage();
  }
  const at::Tensor& tensor = THPVariable_Unpack(object.ptr());
  return tensor.has_storage() ? tensor.storage() : c10::Storage();
}

// Runs an internal part of torchnan for a function of PyTorch, which must not fail because of it.
template <typename Work>
void run_for_hook(Work&& work) {
  try {
    work();
  } catch (...) {
    if (const auto session = ThreadState::current().shared_session())
      count_failure(*session, "noting that memory is shared");
  }
}

// If the memory belongs to a device: launches its scans, then calls `record` with the journal.
template <typename Record>
void record_on_devices(const c10::Storage& storage, Record record) {
  if (!devices().in_use() || storage.device_type() == c10::kCPU) return;
  const py::gil_scoped_release no_gil;  // a launch may wait for the device
  devices().prepare_writes(storage.unsafeGetStorageImpl());
  record(Devices::Lock(devices()).journal());
}

void mark_stale(const py::handle& object) {
  run_for_hook([&] {
    const c10::Storage storage = storage_in(object);
    if (!storage) return;
    bound_cache().mark_stale(*storage.unsafeGetStorageImpl());
    record_on_devices(storage, [&](Journal& journal) { journal.mark_stale(*storage.unsafeGetStorageImpl()); });
  });
}

void record_exported(const py::handle& object) {
  run_for_hook([&] {
    const c10::Storage storage = storage_in(object);
    if (!storage) return;
    bound_cache().record_exported(storage);
    record_on_devices(storage, [&](Journal& journal) { journal.record_exported(storage); });
  });
}

void record_aliased(const py::handle& object) {
  if (!THPVariable_Check(object.ptr())) return mark_stale(object);
  bound_cache().record_aliased(THPVariable_Unpack(object.ptr()));
}

// Code that takes addresses and storages without keeping them: to compare, to read, or to write at once.
struct AddressReaders {
  std::vector<std::string> folders;      // of packages, with a separator at the end
  std::vector<py::object> intermediate;  // code that returns the address or storage to its caller
};
AddressReaders& address_readers = *new AddressReaders;  // accessed with the GIL; never destroyed, as it holds objects

void set_address_readers(std::vector<std::string> folders, std::vector<py::object> intermediate) {
  address_readers = {std::move(folders), std::move(intermediate)};
}

bool is_taken_by_reader() {
  std::array<RawFrame, 8> frames;
  const size_t depth = walk_frames(frames.data(), frames.size());
  for (size_t i = 0; i < depth; ++i) {
    auto* code = reinterpret_cast<PyObject*>(frames[i].code);
    const auto is_this = [code](const py::object& one) { return one.ptr() == code; };
    if (std::ranges::any_of(address_readers.intermediate, is_this)) continue;
    const char* file = PyUnicode_AsUTF8(frames[i].code->co_filename);
    if (file == nullptr) PyErr_Clear();
    const std::string_view path = file == nullptr ? "" : file;
    return std::ranges::any_of(address_readers.folders, [&](const auto& folder) { return path.starts_with(folder); });
  }
  return false;
}

void record_address_taken(const py::handle& object) {
  if (is_running_region_on_device()) return;
  is_taken_by_reader() ? mark_stale(object) : record_exported(object);
}

// Records a tensor of an object for other ranks, which is sent as bytes.
void record_sent(const at::Tensor& tensor) {
  const auto session = ThreadState::current().shared_session();
  const py::gil_scoped_release no_gil;
  if (session != nullptr) record_sent_in_object(*session, tensor);
}

// Records a tensor of an object from another rank, or from this one, which arrived as bytes.
void record_received(const at::Tensor& tensor) {
  const at::Tensor values = scannable_values(tensor);
  if (values.defined()) record_received_in_object(values);
}

// Does nothing for an iterator, because iterating would exhaust it.
void mark_all_stale(const py::handle& tensors) {
  if (!PyTuple_Check(tensors.ptr()) && !PyList_Check(tensors.ptr())) return;
  for (const py::handle tensor : tensors) mark_stale(tensor);
}

}  // namespace

void bind_hook_callbacks(py::module_& m) {
  m.def("report_backward_roots", &check_backward_roots, py::arg("roots"), py::arg("gradients"));
  m.def("report_read", &report_read);
  m.def("mark_all_stale", &mark_all_stale);
  m.def("mark_stale", &mark_stale);
  m.def("record_exported", &record_exported);
  m.def("record_aliased", &record_aliased);
  m.def("record_address_taken", &record_address_taken);
  m.def("set_address_readers", &set_address_readers, py::arg("folders"), py::arg("intermediate"));
  m.def("record_sent", &record_sent);
  m.def("record_received", &record_received);
  m.def("storage_of", &storage_address);
  m.def("record_call_site", &record_next_node_site);
}

}  // namespace torchnan
