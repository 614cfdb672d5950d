// torchnan._C: the Python interface of the core.
#include <torch/csrc/utils/pybind.h>  // must be first: converts tensors to and from Python

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/ScopeExit.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/version.h>

#include "intercept/handover.h"
#include "intercept/harm_checks.h"
#include "origin/headroom.h"
#include "intercept/session_lifetime.h"
#include "detection/session.h"
#include "detection/thread_state.h"
#include "device/devices.h"
#include "device/resolve.h"
#include "base/environment.h"
#include "base/thread_switches.h"
#include "intercept/install_interceptor.h"
#include "base/dispatch_key.h"
#include "check/scan/measure.h"
#include "origin/collectives.h"
#include "origin/nonfinite_registry.h"
#include "python/apart.h"
#include "python/bindings.h"
#include "python/call_python.h"
#include "python/compiled_regions.h"
#include "python/convert.h"
#include "python/kept_calls.h"
#include "python/option_values.h"
#include "python/python_runtime.h"
#include "report/append_only_file.h"
#include "check/scan/tensor_scan.h"
#include "base/printable.h"

namespace py = pybind11;
using namespace torchnan;

namespace {

// Null if this thread has no session.
std::shared_ptr<DetectionSession> current_session() { return ThreadState::current().shared_session(); }

void report_harm_of(const std::string& harm, const std::vector<at::Tensor>& tensors, const py::function& name_of) {
  const auto session = current_session();
  if (session == nullptr) return;
  report_tensors(*session, parse_enum<HarmKind>(harm), tensors,
                 [&](size_t i) { return with_gil([&] { return from_py_str(name_of(i)); }); });
}

c10::Device current_device(const std::string& type) {
  const c10::DeviceType of_type = c10::Device(type).type();
  return c10::impl::hasDeviceGuardImpl(of_type) ? c10::impl::getDeviceGuardImpl(of_type)->getDevice()
                                                : c10::Device(of_type, 0);
}

// Empty if tensors on devices of this type are scanned. Makes the scanner of the current device, if there is none.
std::string unscanned_reason(const std::string& type) {
  const c10::Device device = current_device(type);
  return Scanner::of(device) != nullptr ? "" : Scanner::unavailable_reason(device);
}

// Records the failure of a part of torchnan written in Python.
void record_failure(const std::string& part, const py::str& why) {
  if (const auto session = current_session())
    session->count_internal_error(part, part + " failed: " + from_py_str(why));
}

// Runs `work` and raises its system error as the matching OSError.
template <typename Work>
auto with_os_errors(Work&& work) {
  try {
    return work();
  } catch (const std::system_error& error) {
    PyErr_SetObject(PyExc_OSError, py::make_tuple(error.code().value(), error.what()).ptr());
    throw py::error_already_set();
  }
}

std::atomic<int> status_instead_of_success{0};

// Ends the process with `status` if it would end with 0. Python has chosen its status when its own handlers run, so
// this is a handler of the C library: by `exit()`, the handlers that remain run as they would.
void end_with(int status) {
  if (status_instead_of_success.exchange(status) != 0) return;
  on_exit(
      [](int would_be, void*) {
        if (would_be == 0) std::exit(status_instead_of_success.load());
      },
      nullptr);
}

std::shared_ptr<DetectionSession> session_from(const py::dict& values) {
  return with_os_errors([&] { return make_session(options_from(values)); });
}

int64_t append_line(const py::str& path, const std::string& line, const std::string& first) {
  return with_os_errors([&] { return AppendOnlyFile(from_py_str(path)).append(line, first); });
}

void bind_session_class(py::module_& m) {
  py::class_<DetectionSession, std::shared_ptr<DetectionSession>>(m, "DetectionSession")
      .def(py::init(&session_from))
      .def_property_readonly("id",
                             [](const DetectionSession& session) { return reinterpret_cast<uintptr_t>(&session); })
      .def("findings",
           [](const DetectionSession& session) {
             py::list findings;
             for (const Finding& finding : session.log().findings()) findings.append(to_python(finding));
             return findings;
           })
      .def("stats", [](const DetectionSession& session) { return to_python(session.stats()); })
      .def("headroom",
           [](const DetectionSession& session) {
             py::list rows;
             for (const Headroom& headroom : drain_headroom(session)) rows.append(to_python(headroom));
             return rows;
           })
      .def("mark_step", &DetectionSession::mark_step)
      .def_property_readonly("step", &DetectionSession::step)
      .def_property_readonly("max_explanation_seconds",
                             [](const DetectionSession& session) { return session.options().max_explanation_seconds; });
}

// Each cause as (source, bits of its kinds, line of JSON).
using PackedCause = std::tuple<int, int, std::string>;

std::vector<PackedCause> causes_for_others(const at::Tensor& tensor, const std::string& process) {
  std::vector<PackedCause> packed;
  for (const HandedOver& cause : describe_for_others(tensor, process)) {
    packed.emplace_back(static_cast<int>(cause.source), bits_of(cause.kinds), to_json(cause.facts));
  }
  return packed;
}

void receive_causes(const at::Tensor& tensor, const std::vector<PackedCause>& packed) {
  const auto session = current_session();
  if (session == nullptr) return;
  std::vector<HandedOver> causes;
  for (const auto& [source, bits, facts] : packed) {
    causes.push_back({static_cast<OriginRecord::Source>(source), kinds_from(bits), finding_from_json(facts)});
  }
  record_received(*session, tensor, std::move(causes));
}

// Returns None if no value of the tensor is non-finite.
py::object origin_of(const at::Tensor& tensor) {
  const auto session = current_session();
  if (session == nullptr) throw std::runtime_error("no detection is on in this thread");
  std::optional<Finding> found;
  {
    const py::gil_scoped_release released;
    found = find_origin(*session, tensor);
  }
  return found ? to_python(*found) : py::none();
}

// The largest |x| of each tensor; nothing for a tensor that is not finite, or has no bounds.
std::vector<std::optional<double>> magnitudes(const std::vector<at::Tensor>& tensors) {
  std::vector<std::optional<double>> found;
  for (const at::Tensor& tensor : tensors) {
    const ScanResult scanned = check_finite(tensor);
    const bool is_known = scanned.skip == Skip::kNone && scanned.finite && std::isfinite(scanned.max_abs);
    found.push_back(is_known ? std::optional(scanned.max_abs) : std::nullopt);
  }
  return found;
}

void bind_session(py::module_& m) {
  const auto without_gil = py::call_guard<py::gil_scoped_release>();
  m.def("enter_session", &enter_session);
  m.def("leave_session", &leave_session);
  m.def("resolve_pending", &resolve_pending, py::arg("session"), without_gil);
  m.def(
      "end_session",
      [](const std::shared_ptr<DetectionSession>& session, bool report_pending) {
        const auto forget = c10::make_scope_exit([&] { forget_kept_calls(*session); });
        const py::gil_scoped_release released;
        end_session(session, report_pending);
      },
      py::arg("session"), py::arg("report_pending"));
  m.def("current_session", &current_session);
  m.def("open_scopes", &open_scopes);
  m.def("suspend_thread", [] { ThreadState::current().suspend(); });
  m.def("resume_thread", [] { ThreadState::current().resume(); });
  m.def("count_step", [] {
    if (DetectionSession* const session = ThreadState::current().session()) session->count_step();
  });
  m.def("count_skipped_step", [] {
    if (DetectionSession* const session = ThreadState::current().session()) session->count_skipped_step();
  });
  m.def("causes_for_others", &causes_for_others, py::arg("tensor"), py::arg("process"), without_gil);
  m.def("receive_causes", &receive_causes, py::arg("tensor"), py::arg("causes"), without_gil);
  m.def(
      "norms_and_magnitudes", [](const std::vector<at::Tensor>& tensors) { return norms_and_magnitudes(tensors); },
      py::arg("tensors"), without_gil);
  m.def("magnitudes", &magnitudes, py::arg("tensors"), without_gil);
  m.def("has_nonfinite", [] { return nonfinite_registry().in_use() || (devices().in_use() && has_known_bad()); });
  m.def("uses_devices", [] { return devices().in_use(); });
  m.def("has_received", &has_received);
  m.def("is_alarmed", [] { return devices().in_use() && devices().is_alarmed(); });
  m.def("launch_scans", [] { devices().launch_all(); }, without_gil);
  m.def("report_tensors", &report_harm_of, py::arg("harm"), py::arg("tensors"), py::arg("name_of"), without_gil);
  m.def("origin_of", &origin_of, py::arg("tensor"));
  m.def("unscanned_reason", &unscanned_reason, py::arg("type"));
  m.def("scanner_name", [](const std::string& type) { return Scanner::name_of(current_device(type)); });
  m.def("unscanned_devices", &Scanner::unavailable_devices);
  m.def("scalar_value", &scalar_value);
  m.def("record_failure", &record_failure, py::arg("part"), py::arg("why"));
  m.def("instances_of", &instances_of);
  bind_hook_callbacks(m);
  bind_callback_sites(m);
  bind_bound_rules(m);
  bind_buffers(m);
  bind_generated_numbers(m);
  bind_gradients(m);
  bind_proved_steps(m);
  bind_apart(m);
  bind_compiled_regions(m);
  bind_method_hooks(m);
  bind_host_memory(m);
  bind_random_memory(m);
  bind_signal_actions(m);
  bind_twin_guards(m);
  m.attr("built_for_torch") = TORCH_VERSION;
  m.def("interceptor_key_name", [] {
    install_interceptor();
    return std::string(c10::toString(kInterceptorKey));
  });
}

// Text in both directions passes through these, because Python's own conversion rejects invalid Unicode.
py::str shown(const py::str& text, size_t limit) { return to_py_str(printable(from_py_str(text), limit)); }
py::str stored(const py::str& text, size_t limit) { return to_py_str(to_valid_utf8(from_py_str(text), limit)); }

void bind_text(py::module_& m) {
  m.def("printable", &shown, py::arg("text"), py::arg("limit") = 400);
  m.def("to_valid_utf8", &stored, py::arg("text"), py::arg("limit") = 1000);
  m.def("rank_from_environment", &rank_from_environment);
  m.def("is_disabled", &is_disabled);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  is_disabled();  // reads the environment now: later changes by the program have no effect
  set_thread_switches(python_thread_switches());
  m.def("set_runtime", &set_python_runtime);
  m.def("finding_from_json", [](std::string_view line) { return to_python(finding_from_json(line)); });
  m.def("option_table", &option_table);
  m.def("accepts_option", &accepts_option, py::arg("name"), py::arg("value"));
  m.def("option_contradictions", &contradictions_of, py::arg("values"));
  m.def("end_with", &end_with, py::arg("status"));
  m.def("append_line", &append_line, py::arg("path"), py::arg("line"), py::arg("first") = "");
  bind_text(m);
  bind_session_class(m);
  bind_session(m);
}
