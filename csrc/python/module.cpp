// torchnan._C: the core as Python sees it.
#include <torch/csrc/utils/pybind.h>  // first: tensors to and from Python

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include "backward/call_site_ring.h"
#include "bounds/claims.h"
#include "bounds/ledger.h"
#include "bounds/rules.h"
#include "check/effort.h"
#include "check/tensor_check.h"
#include "device/devices.h"
#include "host/environment.h"
#include "intercept/dispatch_key.h"
#include "intercept/session.h"
#include "origin/harm.h"
#include "origin/headroom.h"
#include "origin/lineage.h"
#include "python/aside.h"
#include "python/bound_rule.h"
#include "python/call_before.h"
#include "python/call_python.h"
#include "python/convert.h"
#include "python/instances.h"
#include "python/python_program.h"
#include "report/line_file.h"
#include "report/printable.h"
#include "watch/contain.h"
#include "watch/thread_state.h"
#include "watch/watch.h"

namespace py = pybind11;
using namespace torchnan;

namespace {

// The watch that this thread works for; null when nothing watches.
std::shared_ptr<Watch> current_watch() { return ThreadState::here().shared_watch(); }

void judge(const std::string& harm, const std::vector<at::Tensor>& tensors, const py::function& name_of) {
  const auto watch = current_watch();
  if (watch == nullptr) return;
  judge_tensors(*watch, harm_kind_from(harm), tensors,
                [&](size_t i) { return in_python([&] { return text_from(name_of(i)); }); });
}

// Of what autograd's engine is given.
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

void judge_backward(const py::handle& roots, const py::handle& gradients) {
  const auto watch = current_watch();
  if (watch == nullptr || !PyTuple_Check(roots.ptr()) || !PyTuple_Check(gradients.ptr())) return;
  contain(*watch, "judging the roots of backward", [&] {
    const Roots given = roots_from(roots, gradients);
    const py::gil_scoped_release no_gil;
    judge_roots(*watch, given.tensors, given.gradients);
  });
}

// By other means than an operation. Other things than tensors are PyTorch's to refuse.
void judge_read(const py::handle& tensor) {
  const bool is_needed = lineage().in_use() || devices().in_use();
  const auto watch = is_needed && THPVariable_Check(tensor.ptr()) ? current_watch() : nullptr;
  if (watch == nullptr) return;
  const at::Tensor read = THPVariable_Unpack(tensor.ptr());
  const py::gil_scoped_release no_gil;
  judge_tensors(*watch, HarmKind::kRead, read, [](size_t) { return std::string(); });
}

// Of its values, where it is sparse or nested; 0 where it has no memory that could hold a NaN, or does not tell.
uintptr_t storage_of(const py::handle& tensor) {
  if (!THPVariable_Check(tensor.ptr())) return 0;
  try {
    const at::Tensor& given = THPVariable_Unpack(tensor.ptr());
    const at::Tensor on_host = readable(given);
    const at::Tensor values = on_host.defined() ? on_host : scannable(given);
    return values.defined() ? reinterpret_cast<uintptr_t>(values.storage().unsafeGetStorageImpl()) : 0;
  } catch (const std::exception&) {
    return 0;
  }
}

// What the ledger is told of a tensor, by code of PyTorch's that must not fail for it.
template <void (Ledger::*kTell)(const at::Tensor&), void (Journal::*kTellJournal)(const at::Tensor&)>
void tell_ledger(const py::handle& tensor) {
  if (!THPVariable_Check(tensor.ptr())) return;
  try {
    const at::Tensor& given = THPVariable_Unpack(tensor.ptr());
    (ledger().*kTell)(given);
    const at::Tensor there = devices().in_use() ? scannable(given) : at::Tensor();
    if (there.defined()) (Devices::Turn(devices()).journal().*kTellJournal)(there);
  } catch (...) {
    if (const auto watch = current_watch()) count_failure(*watch, "noting that memory is shared");
  }
}

constexpr auto doubt = &tell_ledger<&Ledger::doubt, &Journal::doubt>;
constexpr auto note_exported = &tell_ledger<&Ledger::note_exported, &Journal::note_exported>;

// An iterator would be used up by looking.
void doubt_all(const py::handle& tensors) {
  if (!PyTuple_Check(tensors.ptr()) && !PyList_Check(tensors.ptr())) return;
  for (const py::handle tensor : tensors) doubt(tensor);
}

// Empty if tensors on devices of this type are looked at. Makes the scanner of the first of them, if there is none.
std::string why_not_scanned(const std::string& type) {
  const c10::Device device(type);
  return Scanner::of({device.type(), 0}) != nullptr ? "" : Scanner::why_none(device.type());
}

// A part of torchnan that is written in Python has failed.
void note_failure(const std::string& part, const py::str& why) {
  if (const auto watch = current_watch()) watch->count_internal_error(part, part + " failed: " + text_from(why));
}

// With the OSError that Python knows for it.
template <typename Work>
auto with_os_errors(Work&& work) {
  try {
    return work();
  } catch (const std::system_error& error) {
    PyErr_SetObject(PyExc_OSError, py::make_tuple(error.code().value(), error.what()).ptr());
    throw py::error_already_set();
  }
}

std::shared_ptr<Watch> watch_from(const py::dict& keywords) {
  return with_os_errors([&] { return make_watch(options_from(keywords)); });
}

void append_line(const py::str& path, const std::string& line) {
  with_os_errors([&] { LineFile(text_from(path)).append(line); });
}

void bind_watch(py::module_& m) {
  py::class_<Watch, std::shared_ptr<Watch>>(m, "Watch")
      .def(py::init(&watch_from))
      .def_property_readonly("id", [](const Watch& watch) { return reinterpret_cast<uintptr_t>(&watch); })
      .def("findings",
           [](const Watch& watch) {
             py::list findings;
             for (const Finding& finding : watch.log().findings()) findings.append(to_python(finding));
             return findings;
           })
      .def("report", &Watch::report)
      .def("stats", [](const Watch& watch) { return to_python(watch.stats()); })
      .def("headroom",
           [](const Watch& watch) {
             py::list told;
             for (const Headroom& headroom : take_headroom(watch)) told.append(to_python(headroom));
             return told;
           })
      .def("mark_step", &Watch::mark_step)
      .def("count_step", &Watch::count_step);
}

void bind_session(py::module_& m) {
  const auto without_gil = py::call_guard<py::gil_scoped_release>();
  m.def("enter_watch", &enter_watch);
  m.def("leave_watch", &leave_watch);
  m.def("end_watch", &end_watch, py::arg("watch"), py::arg("judge"), without_gil);
  m.def("current_watch", &current_watch);
  m.def("open_scopes", &open_scopes);
  m.def("anything_nonfinite", [] { return lineage().in_use(); });
  m.def("judge", &judge, py::arg("harm"), py::arg("tensors"), py::arg("name_of"), without_gil);
  m.def("judge_roots", &judge_backward, py::arg("roots"), py::arg("gradients"));
  m.def("judge_read", &judge_read);
  m.def("doubt_all", &doubt_all);
  m.def("note_exported", note_exported);
  m.def("doubt", doubt);
  m.def("why_not_scanned", &why_not_scanned, py::arg("type"));
  m.def("not_scanned", &Scanner::asked_in_vain);
  m.def("storage_of", &storage_of);
  m.def("only_value", &only_value);
  m.def("note_failure", &note_failure, py::arg("part"), py::arg("why"));
  m.def("note_call_site", &note_next_node);
  m.def("instances_of", &instances_of);
  bind_bound_rules(m);
  bind_call_before(m);
  m.def("operators_with_rules", &operators_with_rules);
  m.def("want_claims", [](bool wanted) { claims().want(wanted); });
  m.def("take_claims", [] {
    py::list taken;
    for (const Claim& c : claims().take()) {
      taken.append(py::make_tuple(c.op, c.output, c.bound, c.most, c.limit, c.nonnegative, c.least));
    }
    return taken;
  });
  m.def("effort",
        [] { return py::make_tuple(effort().remembered.load(), effort().resolved.load(), effort().censuses.load()); });
  m.def("interceptor_key_name", [] {
    install_interceptor();
    return std::string(c10::toString(kInterceptorKey));
  });
}

// Text goes both ways through these: Python's own cannot hold what is no Unicode.
py::str shown(const py::str& text, size_t limit) { return python_text(printable(text_from(text), limit)); }
py::str stored(const py::str& text, size_t limit) { return python_text(storable(text_from(text), limit)); }

void bind_words(py::module_& m) {
  m.def("printable", &shown, py::arg("text"), py::arg("limit") = 400);
  m.def("storable", &stored, py::arg("text"), py::arg("limit") = 1000);
  m.def("validate", [](const py::dict& keywords) { return options_from(keywords).validate(); });
  m.def("rank_of_process", &rank_of_process);
  m.def("is_switched_off", &is_switched_off);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  is_switched_off();  // as the environment is now: what the program makes of it later changes nothing
  m.def("plug_in", &plug_in_python);
  m.def("finding_from_json", [](std::string_view line) { return to_python(finding_from_json(line)); });
  m.def("append_line", &append_line, py::arg("path"), py::arg("line"));
  bind_words(m);
  bind_watch(m);
  bind_session(m);
}
