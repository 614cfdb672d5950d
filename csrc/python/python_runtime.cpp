#include <torch/csrc/utils/pybind.h>  // first: tensors to and from Python

#include "python/python_runtime.h"

#include <stdexcept>

#include "process/work_counters.h"
#include "python/call_python.h"
#include "python/convert.h"
#include "python/stack_table.h"
#include "detection/session.h"

namespace py = pybind11;

namespace torchnan {
namespace {

// (code, line, module or None) per frame.
py::list frames_of(SiteId site) {
  py::list frames;
  for (const StackTable::Frame& frame : StackTable::instance().frames(site)) {
    const int line = PyCode_Addr2Line(reinterpret_cast<PyCodeObject*>(frame.code.ptr()), frame.instruction);
    frames.append(py::make_tuple(frame.code, line, frame.module ? frame.module() : py::none()));
  }
  return frames;
}

class PythonProgram final : public Program {
 public:
  explicit PythonProgram(py::object module) : module_(std::move(module)) {}

  SiteId capture() noexcept override { return StackTable::instance().capture(); }
  SiteId within(SiteId live, SiteId outer) noexcept override { return StackTable::instance().within(live, outer); }
  bool reports_backward_roots() const noexcept override { return true; }

  bool is_loss_scaling(const Site& site, const DetectionSession&) override {
    bool answer = false;
    with_gil([&] { answer = module_.attr("is_loss_scaling")(frames_of(site.live)).cast<bool>(); });
    return answer;
  }

  Place place(const Site& site, const DetectionSession& session) override {
    Place place;
    if (!site.node.empty()) place.phase = Phase::kBackward;
    ++work_counters().resolved;
    with_gil([&] {
      const py::tuple answer = module_.attr("place")(frames_of(site.live), frames_of(site.forward), site.node,
                                                     site.grad_mode, reinterpret_cast<uintptr_t>(&session));
      for (const py::handle frame : answer[0]) {
        const auto [file, line, function] = frame.cast<std::tuple<py::str, int64_t, py::str>>();
        place.stack.push_back({from_py_str(file), line, from_py_str(function)});
      }
      if (!answer[1].is_none()) place.module = from_py_str(answer[1]);
      place.phase = phase_from(from_py_str(answer[2]));
    });
    return place;
  }

  std::vector<Place> places(const std::vector<Site>& sites, const DetectionSession& session) override {
    std::vector<Place> places(sites.size());
    with_gil([&] {
      py::list asked;
      for (const Site& site : sites) asked.append(py::make_tuple(frames_of(site.live), site.grad_mode));
      size_t i = 0;
      for (const py::handle answer : module_.attr("places")(asked, reinterpret_cast<uintptr_t>(&session))) {
        const auto [module, phase] = answer.cast<std::tuple<py::object, py::str>>();
        if (!module.is_none()) places.at(i).module = from_py_str(module);
        places.at(i++).phase = phase_from(from_py_str(phase));
      }
    });
    return places;
  }

  std::optional<Owner> owner(const c10::StorageImpl* storage, SiteId use, bool everywhere,
                             const DetectionSession& session) override {
    std::optional<Owner> owner;
    with_gil([&] {
      const py::object answer = module_.attr("owner")(reinterpret_cast<uintptr_t>(storage), frames_of(use), everywhere,
                                                      reinterpret_cast<uintptr_t>(&session));
      if (answer.is_none()) return;
      const auto [is_buffer, name] = answer.cast<std::tuple<bool, py::str>>();
      owner = Owner{is_buffer, from_py_str(name)};
    });
    return owner;
  }

  std::vector<Held> held(const std::vector<at::Tensor>& tensors) override {
    if (tensors.empty()) return {};
    std::vector<uintptr_t> storages;
    for (const at::Tensor& tensor : tensors) {
      storages.push_back(reinterpret_cast<uintptr_t>(tensor.storage().unsafeGetStorageImpl()));
    }
    std::vector<Held> held;
    with_gil([&] {
      for (const py::handle one : module_.attr("held")(storages)) {
        const auto [tensor, as_gradient] = one.cast<std::tuple<at::Tensor, bool>>();
        held.push_back({tensor, as_gradient});
      }
    });
    return held;
  }

 private:
  py::object module_;
};

class PythonMessenger final : public UserNotifier {
 public:
  explicit PythonMessenger(py::object module) : module_(std::move(module)) {}

  void raise(const Finding& finding) override {
    with_gil([&] {
      const py::object error = module_.attr("NonFiniteError")(to_python(finding), to_text(finding));
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
      raise_in_caller();
    });
    throw std::logic_error("not reached");
  }

  void warn(const Finding& finding) override {
    say([&] { module_.attr("warn")(to_python(finding), to_text(finding)); });
  }
  void warn(const std::string& text) override {
    say([&] { module_.attr("warn_of_detector")(text); });
  }

 private:
  // A program that makes errors of warnings gets one here too, and there is nobody to take it but sys.unraisablehook.
  template <typename Words>
  void say(Words&& words) {
    with_gil([&] {
      try {
        words();
      } catch (py::error_already_set& raised) {
        if (!raised.matches(PyExc_Exception)) throw;
        raised.discard_as_unraisable("torchnan");
        throw std::runtime_error("nobody could be warned");
      }
    });
  }

  py::object module_;
};

}  // namespace

void plug_in_python(py::object program_module, py::object errors_module) {
  StackTable::instance().set_engine(
      reinterpret_cast<PyCodeObject*>(program_module.attr("engine_code")().release().ptr()));
  StackTable::instance().set_module_call(
      reinterpret_cast<PyCodeObject*>(program_module.attr("module_call_code")().release().ptr()));
  set_host(static_cast<Program*>(new PythonProgram(std::move(program_module))));
  set_host(static_cast<UserNotifier*>(new PythonMessenger(std::move(errors_module))));
}

}  // namespace torchnan
