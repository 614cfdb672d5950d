#include <torch/csrc/utils/pybind.h>  // first: tensors to and from Python

#include "python/hook_callbacks.h"

#include <cstdint>
#include <exception>
#include <string>

#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/python_variable.h>

#include "api/harm_checks.h"
#include "bounds/bound_cache.h"
#include "call_sites/call_site_ring.h"
#include "detection/error_containment.h"
#include "detection/session.h"
#include "detection/thread_state.h"
#include "device/devices.h"
#include "origin/nonfinite_registry.h"
#include "python/compiled_regions.h"
#include "scan/storage_of.h"
#include "scan/tensor_scan.h"

namespace py = pybind11;

namespace torchnan {
namespace {

// What autograd's engine is given.
struct Roots {
  c10::SmallVector<at::Tensor, 2> tensors;
  c10::SmallVector<at::Tensor, 2> gradients;
};

// A gradient may be None, a root an edge of a graph.
Roots roots_from(const py::handle& roots, const py::handle& gradients) {
  Roots found;
  auto gradient = py::iter(gradients);
  for (const py::handle root : py::iter(roots)) {
    const py::handle its_gradient = gradient == py::iterator::sentinel() ? py::handle() : *gradient;
    if (its_gradient) ++gradient;
    if (!THPVariable_Check(root.ptr())) continue;
    found.tensors.push_back(THPVariable_Unpack(root.ptr()));
    const bool is_given = its_gradient && THPVariable_Check(its_gradient.ptr());
    found.gradients.push_back(is_given ? THPVariable_Unpack(its_gradient.ptr()) : at::Tensor());
  }
  return found;
}

void check_backward_roots(const py::handle& roots, const py::handle& gradients) {
  const auto session = is_replaying() ? nullptr : ThreadState::current().shared_session();
  if (session == nullptr || !PyTuple_Check(roots.ptr()) || !PyTuple_Check(gradients.ptr())) return;
  contain(*session, "checking the roots of backward", [&] {
    const Roots given = roots_from(roots, gradients);
    const py::gil_scoped_release no_gil;
    report_backward_roots(*session, given.tensors, given.gradients);
  });
}

// By other means than an operation. Other things than tensors are PyTorch's to refuse.
void report_read(const py::handle& tensor) {
  const bool is_needed = nonfinite_registry().in_use() || devices().in_use();
  const bool is_programs = is_needed && !is_replaying() && THPVariable_Check(tensor.ptr());
  const auto session = is_programs ? ThreadState::current().shared_session() : nullptr;
  if (session == nullptr) return;
  const at::Tensor read = THPVariable_Unpack(tensor.ptr());
  const py::gil_scoped_release no_gil;
  report_tensors(*session, HarmKind::kRead, read, [](size_t) { return std::string(); });
}

// Of its values, where it is sparse or nested; 0 where it has no memory that could hold a NaN, or does not expose it.
uintptr_t storage_address(const py::handle& tensor) {
  if (!THPVariable_Check(tensor.ptr())) return 0;
  try {
    const at::Tensor& given = THPVariable_Unpack(tensor.ptr());
    const at::Tensor on_host = scannable_values(given);
    const at::Tensor values = on_host.defined() ? on_host : *scannable(given);
    return values.defined() ? reinterpret_cast<uintptr_t>(storage_of(values)) : 0;
  } catch (const std::exception&) {
    return 0;
  }
}

// Reports of PyTorch's code to the bound cache about a tensor; that code must not fail for it.
template <void (BoundCache::*kRecord)(const at::Tensor&), void (Journal::*kRecordInJournal)(const at::Tensor&)>
void notify_write(const py::handle& tensor) {
  if (!THPVariable_Check(tensor.ptr())) return;
  try {
    const at::Tensor& given = THPVariable_Unpack(tensor.ptr());
    (bound_cache().*kRecord)(given);
    if (!devices().in_use() || given.is_cpu() || !given.has_storage()) return;
    const at::Tensor kept = given;
    const py::gil_scoped_release no_gil;  // a launch may wait for the device
    devices().launch_scans_of(kept.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
    if (const auto there = scannable(kept); there->defined())
      (Devices::Lock(devices()).journal().*kRecordInJournal)(*there);
  } catch (...) {
    if (const auto session = ThreadState::current().shared_session())
      count_failure(*session, "noting that memory is shared");
  }
}

constexpr auto mark_stale = &notify_write<&BoundCache::mark_stale, &Journal::mark_stale>;
constexpr auto record_exported = &notify_write<&BoundCache::record_exported, &Journal::record_exported>;

// An iterator would be used up by looking.
void mark_all_stale(const py::handle& tensors) {
  if (!PyTuple_Check(tensors.ptr()) && !PyList_Check(tensors.ptr())) return;
  for (const py::handle tensor : tensors) mark_stale(tensor);
}

}  // namespace

void bind_hook_callbacks(py::module_& m) {
  m.def("report_backward_roots", &check_backward_roots, py::arg("roots"), py::arg("gradients"));
  m.def("report_read", &report_read);
  m.def("mark_all_stale", &mark_all_stale);
  m.def("record_exported", record_exported);
  m.def("mark_stale", mark_stale);
  m.def("storage_of", &storage_address);
  m.def("record_call_site", &record_next_node_site);
}

}  // namespace torchnan
