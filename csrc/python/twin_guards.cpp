// The guards of compiled code, checked as if detection were off: see torchnan/detection/compiled/guards.py. They are
// checked at each call of a compiled function, so they are not Python. The attributes are those of Dynamo's guards
// (torch/_dynamo/guards.py), of what it calls to compile (convert_frame.py) and of the stance (eval_frame.py).
#include <pybind11/pybind11.h>

#include <deque>
#include <memory>
#include <utility>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ScopeExit.h>

#include "base/dispatch_key.h"
#include "python/bindings.h"
#include "python/frame_walk.h"

namespace py = pybind11;

namespace torchnan {
namespace {

// The names of attributes, and values of one. Interned once, because they are looked up at each call.
struct Names {
  PyObject* extra_state = PyUnicode_InternFromString("extra_state");
  PyObject* root = PyUnicode_InternFromString("root");
  PyObject* check = PyUnicode_InternFromString("check");
  PyObject* wrapped_backend = PyUnicode_InternFromString("_torchdynamo_orig_backend");
  PyObject* current_stance = PyUnicode_InternFromString("_stance");
  PyObject* stance = PyUnicode_InternFromString("stance");
  PyObject* backend = PyUnicode_InternFromString("backend");
  PyObject* eager_on_recompile = PyUnicode_InternFromString("eager_on_recompile");
  PyObject* default_stance = PyUnicode_InternFromString("default");
};
const Names* names = nullptr;

py::object attribute(const py::handle& object, PyObject* attribute_name) {
  return py::reinterpret_steal<py::object>(PyObject_GetAttr(object.ptr(), attribute_name));
}

py::object known_attribute(const py::handle& object, PyObject* attribute_name) {
  py::object value = attribute(object, attribute_name);
  if (!value) throw py::error_already_set();
  return value;
}

bool is_text(const py::handle& value, PyObject* text) {
  return value.ptr() == text || PyUnicode_Compare(value.ptr(), text) == 0;
}

// Where Dynamo keeps what it calls to compile: a free variable of the function that runs a compiled one in its place.
struct Caller {
  py::object code;
  int variable;
  py::module_ eval_frame;

  // Returns what Dynamo calls to compile on this thread; nothing if no compiled function is called.
  py::object callback() const {
    PyObject* const cell = cell_of_free_variable(reinterpret_cast<PyCodeObject*>(code.ptr()), variable);
    if (cell == nullptr || !PyCell_Check(cell)) return py::none();
    return py::reinterpret_steal<py::object>(PyCell_Get(cell));
  }
};

// Whether what Dynamo calls to compile wraps this backend, which wraps nothing.
bool wraps(py::object callback, const py::object& backend) {
  while (!callback.is(backend)) {
    py::object inner = attribute(callback, names->wrapped_backend);
    if (!inner) PyErr_Clear();
    if (!inner || inner.is_none()) return callback.equal(backend);
    callback = std::move(inner);
  }
  return true;
}

// Whether Dynamo, which looks for code to run on this thread, may use code of a backend.
bool is_compiling_with(const Caller& caller, const py::object& backend) {
  const py::object callback = caller.callback();
  if (callback.is_none() || callback.ptr() == Py_False) return true;
  const py::object stance = known_attribute(caller.eval_frame, names->current_stance);
  const py::object kind = known_attribute(stance, names->stance);
  if (is_text(kind, names->eager_on_recompile)) return true;
  const py::object forced = known_attribute(stance, names->backend);
  const bool is_forced = !forced.is_none() && is_text(kind, names->default_stance);
  return wraps(is_forced ? caller.eval_frame.attr("get_compiler_fn")(forced) : callback, backend);
}

// Returns which torch.compile(..., isolate_recompiles=True) runs on this thread; -1 if none.
int64_t current_scope(const Caller& caller) {
  return caller.eval_frame.attr("get_eval_frame_isolate_recompiles_id")().cast<int64_t>();
}

struct TwinGuard {
  py::object guards;  // a weak reference: Dynamo owns them
  py::object backend;
  int64_t scope;  // of code that is apart from other code of its function; -1 for all other

  // Whether the code fits a call with these local variables.
  bool matches(const Caller& caller, const py::object& values) const {
    const py::object present = guards();
    if (present.is_none() || known_attribute(present, names->extra_state).is_none())
      return false;  // Dynamo has discarded the code
    if (scope >= 0 && scope != current_scope(caller)) return false;
    const auto result = py::reinterpret_steal<py::object>(
        PyObject_CallMethodOneArg(known_attribute(present, names->root).ptr(), names->check, values.ptr()));
    if (!result) throw py::error_already_set();
    return result.ptr() == Py_True && is_compiling_with(caller, backend);
  }
};

// The guards of all twins that a function has got in a session, in their order. Dynamo prefers the newest code.
class TwinGuards : public std::enable_shared_from_this<TwinGuards> {
 public:
  TwinGuards(py::object code, int variable)
      : caller_{std::move(code), variable, py::module_::import("torch._dynamo.eval_frame")} {}

  // Returns the check of a new twin: whether a call with these local variables uses it.
  py::cpp_function add(py::object guards, py::object backend, int64_t scope) {
    twins_.push_back({std::move(guards), std::move(backend), scope});
    return [self = shared_from_this(), index = twins_.size() - 1](const py::object& values) {
      return self->is_used(index, values);
    };
  }

 private:
  bool is_used(size_t index, const py::object& values) const {
    const c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
    if (!keys.included_.has(kInterceptorKey) || keys.excluded_.has(kInterceptorKey)) return false;
    const c10::impl::ExcludeDispatchKeyGuard as_when_compiled(kInterceptorKey);
    if (!twins_[index].matches(caller_, values)) return false;
    for (size_t newer = index + 1; newer < twins_.size(); ++newer) {
      if (twins_[newer].matches(caller_, values)) return false;
    }
    return true;
  }

  const Caller caller_;
  std::deque<TwinGuard> twins_;  // a check may add one: references stay
};

bool is_running(PyThreadState* thread, const py::handle& code) {
  auto frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyThreadState_GetFrame(thread)));
  while (frame) {
    auto* const current = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto runs = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(current)));
    if (runs.is(code)) return true;
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(current)));
  }
  return false;
}

// Calls `change` unless a function with this code is on the stack of another thread, and returns whether it has called
// it. No other thread runs in between: `change` must not run Python code, and the garbage collector could.
bool call_unless_running(const py::handle& code, const py::function& change) {
  const bool collects = PyGC_Disable() != 0;
  const auto enable = c10::make_scope_exit([collects] {
    if (collects) PyGC_Enable();
  });
  PyThreadState* const mine = PyThreadState_Get();
  for (PyThreadState* thread = PyInterpreterState_ThreadHead(PyInterpreterState_Get()); thread != nullptr;
       thread = PyThreadState_Next(thread)) {
    if (thread != mine && is_running(thread, code)) return false;
  }
  change();
  return true;
}

}  // namespace

void bind_twin_guards(py::module_& m) {
  names = new Names;
  py::class_<TwinGuards, std::shared_ptr<TwinGuards>>(m, "TwinGuards")
      .def(py::init<py::object, int>(), py::arg("code"), py::arg("variable"))
      .def("add", &TwinGuards::add, py::arg("guards"), py::arg("backend"), py::arg("scope"));
  m.def("call_unless_running", &call_unless_running, py::arg("code"), py::arg("change"));
}

}  // namespace torchnan
