#include <torch/csrc/utils/pybind.h>  // must be first: converts tensors to and from Python

#include "python/python_runtime.h"

#include <memory>
#include <optional>
#include <stdexcept>

#include "base/work_counters.h"
#include "python/call_python.h"
#include "python/convert.h"
#include "python/stack_table.h"
#include "detection/session.h"

namespace py = pybind11;

namespace torchnan {

py::list stack_frames(SiteId site) {
  py::list frames;
  for (const StackTable::Frame& frame : StackTable::instance().frames(site)) {
    const int line = PyCode_Addr2Line(reinterpret_cast<PyCodeObject*>(frame.code.ptr()), frame.instruction);
    frames.append(py::make_tuple(frame.code, line, frame.module ? frame.module() : py::none(), frame.instruction));
  }
  return frames;
}

namespace {

// `lines`: of the introspection, which says of a file whether it is installed.
std::vector<Frame> frames_of(const py::handle& lines, const py::handle& introspection) {
  const py::object is_installed = introspection.attr("is_installed");
  std::vector<Frame> frames;
  for (const py::handle frame : lines) {
    const auto [file, line, function] = frame.cast<std::tuple<py::str, int64_t, py::str>>();
    frames.push_back({from_py_str(file), line, from_py_str(function), is_installed(file).cast<bool>()});
  }
  return frames;
}

// The site that was resolved last. An operation asks several times for the same one, and an optimizer that was given
// many non-finite gradients asks for each. Guarded by the GIL.
class LastSite {
 public:
  bool is(const Site& site, const DetectionSession& session) const {
    const auto given = session.weak_from_this();
    const bool is_of_session = !session_.owner_before(given) && !given.owner_before(session_);
    return is_of_session && site_.live == site.live && site_.forward == site.forward && site_.node == site.node &&
           site_.grad_mode == site.grad_mode;
  }
  void set(const Site& site, const DetectionSession& session, const ResolvedSite& resolved) {
    site_ = site;
    session_ = session.weak_from_this();
    resolved_ = resolved;
  }
  const ResolvedSite& resolved() const { return resolved_; }

 private:
  std::weak_ptr<const DetectionSession> session_;
  Site site_;
  ResolvedSite resolved_;
};

// The answer to the question that was asked last about a stack. Guarded by the GIL.
class LastAnswer {
 public:
  template <typename Ask>
  bool of(SiteId stack, Ask&& ask) {
    if (!stack_ || *stack_ != stack) {
      answer_ = ask(stack_frames(stack));
      stack_ = stack;
    }
    return answer_;
  }

 private:
  std::optional<SiteId> stack_;
  bool answer_ = false;
};

class PythonRuntime final : public Runtime {
 public:
  explicit PythonRuntime(py::object module) : module_(std::move(module)) {}

  SiteId current_stack_id() noexcept override { return StackTable::instance().current_stack_id(); }
  SiteId nest_stack(SiteId live, SiteId outer) noexcept override {
    return StackTable::instance().nest_stack(live, outer);
  }
  bool has_scopes_in_stacks() const noexcept override { return false; }
  bool reports_backward_roots() const noexcept override { return true; }

  bool is_loss_scaling(const Site& site, const DetectionSession&) override {
    bool answer = false;
    with_gil([&] {
      answer = is_loss_scaling_.of(
          site.live, [&](const py::list& frames) { return module_.attr("is_loss_scaling")(frames).cast<bool>(); });
    });
    return answer;
  }

  ResolvedSite resolve_site(const Site& site, const DetectionSession& session) override {
    ResolvedSite resolved;
    if (!site.node.empty()) resolved.phase = Phase::kBackward;
    with_gil([&] {
      if (last_site_.is(site, session)) return void(resolved = last_site_.resolved());
      ++work_counters().resolved;
      const py::tuple answer =
          module_.attr("resolve_site")(stack_frames(site.live), stack_frames(site.forward), site.node, site.grad_mode,
                                       reinterpret_cast<uintptr_t>(&session));
      resolved.stack = frames_of(answer[0], module_);
      resolved.backward_stack = frames_of(answer[3], module_);
      if (!answer[1].is_none()) {
        const auto [path, type] = answer[1].cast<std::tuple<py::str, py::str>>();
        resolved.module = from_py_str(path);
        resolved.module_type = from_py_str(type);
      }
      resolved.phase = parse_enum<Phase>(from_py_str(answer[2]));
      last_site_.set(site, session, resolved);
    });
    return resolved;
  }

  std::vector<ResolvedSite> resolve_sites(const std::vector<Site>& sites, const DetectionSession& session) override {
    std::vector<ResolvedSite> resolved(sites.size());
    with_gil([&] {
      py::list asked;
      for (const Site& site : sites) asked.append(py::make_tuple(stack_frames(site.live), site.grad_mode));
      size_t i = 0;
      for (const py::handle answer : module_.attr("resolve_sites")(asked, reinterpret_cast<uintptr_t>(&session))) {
        const auto [module, phase] = answer.cast<std::tuple<py::object, py::str>>();
        if (!module.is_none()) resolved.at(i).module = from_py_str(module);
        resolved.at(i++).phase = parse_enum<Phase>(from_py_str(phase));
      }
    });
    return resolved;
  }

  std::optional<Owner> owner_of_memory(const StorageSpan& memory, SiteId use, bool search_all_modules,
                                       const DetectionSession& session) override {
    std::optional<Owner> owner;
    with_gil([&] {
      const auto span = py::make_tuple(reinterpret_cast<uintptr_t>(memory.storage), memory.begin, memory.end);
      const py::object answer = module_.attr("owner_of_memory")(span, stack_frames(use), search_all_modules,
                                                                reinterpret_cast<uintptr_t>(&session));
      if (answer.is_none()) return;
      const auto [is_buffer, name] = answer.cast<std::tuple<bool, py::str>>();
      owner = Owner{is_buffer, from_py_str(name)};
    });
    return owner;
  }

  bool is_shape_inference(const Site& site) override {
    bool answer = false;
    with_gil([&] {
      answer = is_shape_inference_.of(
          site.live, [&](const py::list& frames) { return module_.attr("is_shape_inference")(frames).cast<bool>(); });
    });
    return answer;
  }

  std::string bucket(int64_t numel, int64_t element) override {
    std::string names;
    with_gil([&] { names = from_py_str(module_.attr("bucket")(numel, element)); });
    return names;
  }

  std::optional<int64_t> rank() override {
    std::optional<int64_t> rank;
    with_gil([&] {
      const py::object answer = module_.attr("rank")();
      if (!answer.is_none()) rank = answer.cast<int64_t>();
    });
    return rank;
  }

  std::optional<InitialMagnitude> initial_magnitude(const c10::StorageImpl* storage) override {
    std::optional<InitialMagnitude> known;
    with_gil([&] {
      const py::object answer = module_.attr("initial_magnitude")(reinterpret_cast<uintptr_t>(storage));
      if (answer.is_none()) return;
      const auto [absmax, step] = answer.cast<std::tuple<double, int64_t>>();
      known = InitialMagnitude{absmax, step};
    });
    return known;
  }

  std::string dataset_item(const at::Tensor& value) override {
    std::string item;
    with_gil([&] {
      const auto storage = reinterpret_cast<uintptr_t>(value.storage().unsafeGetStorageImpl());
      const auto address = value.is_cpu() ? reinterpret_cast<uintptr_t>(value.const_data_ptr()) : uintptr_t{0};
      item = from_py_str(module_.attr("dataset_item")(storage, address));
    });
    return item;
  }

  std::string bad_hyperparameter() override {
    std::string which;
    with_gil([&] { which = from_py_str(module_.attr("bad_hyperparameter")()); });
    return which;
  }

  std::vector<ReachableTensor> reachable_tensors(const std::vector<at::Tensor>& tensors) override {
    if (tensors.empty()) return {};
    std::vector<uintptr_t> storages;
    for (const at::Tensor& tensor : tensors) {
      storages.push_back(reinterpret_cast<uintptr_t>(tensor.storage().unsafeGetStorageImpl()));
    }
    std::vector<ReachableTensor> held;
    with_gil([&] {
      for (const py::handle one : module_.attr("reachable_tensors")(storages)) {
        const auto [tensor, as_gradient] = one.cast<std::tuple<at::Tensor, bool>>();
        held.push_back({tensor, as_gradient});
      }
    });
    return held;
  }

 private:
  py::object module_;
  LastSite last_site_;
  LastAnswer is_loss_scaling_;
  LastAnswer is_shape_inference_;
};

class PythonNotifier final : public UserNotifier {
 public:
  explicit PythonNotifier(py::object module) : module_(std::move(module)) {}

  void raise(const Finding& finding) override {
    with_gil([&] {
      const py::object error = module_.attr("NonFiniteError")(to_python(finding), to_text(finding));
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
      raise_in_caller();
    });
    throw std::logic_error("not reached");
  }

  void warn(const Finding& finding) override {
    warn_or_throw([&] { module_.attr("warn")(to_python(finding), to_text(finding)); });
  }
  void warn(const std::string& text) override {
    warn_or_throw([&] { module_.attr("warn_of_detector")(text); });
  }
  void stop_in_debugger(const Finding& finding) override {
    with_gil([&] { module_.attr("stop_in_debugger")(to_python(finding)); });
  }

 private:
  // If warnings are errors, a warning raises. No caller could handle it, so it goes to sys.unraisablehook.
  template <typename Warn>
  void warn_or_throw(Warn&& warn) {
    with_gil([&] {
      try {
        warn();
      } catch (py::error_already_set& raised) {
        if (!raised.matches(PyExc_Exception)) throw;
        raised.discard_as_unraisable("torchnan");
        throw std::runtime_error("the warning could not be shown");
      }
    });
  }

  py::object module_;
};

}  // namespace

void set_python_runtime(py::object introspection_module, py::object errors_module) {
  StackTable::instance().set_engine(
      reinterpret_cast<PyCodeObject*>(introspection_module.attr("engine_code")().release().ptr()));
  StackTable::instance().set_module_call(
      reinterpret_cast<PyCodeObject*>(introspection_module.attr("module_call_code")().release().ptr()));
  StackTable::instance().set_replayed_module_call(
      reinterpret_cast<PyCodeObject*>(introspection_module.attr("replayed_module_call_code")().release().ptr()));
  set_runtime(static_cast<Runtime*>(new PythonRuntime(std::move(introspection_module))));
  set_user_notifier(static_cast<UserNotifier*>(new PythonNotifier(std::move(errors_module))));
}

}  // namespace torchnan
