#include "python/method_hook.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

namespace py = pybind11;

namespace torchnan {
namespace {

struct Hook {
  PyMethodDef* definition = nullptr;  // null: free
  PyCFunction original = nullptr;
  PyObject* look = nullptr;  // owned; null: the call is passed on
  size_t first = 0;
  size_t count = 0;
};

// Touched with the GIL only. A C function has no state of its own: each hook has one that knows its place.
constexpr size_t kHooks = 16;
std::array<Hook, kHooks> hooks;

// As many as there are.
py::list arguments_of(const Hook& hook, PyObject* self, PyObject* args) {
  py::list all;
  if (!PyModule_Check(self)) all.append(py::handle(self));
  if ((hook.definition->ml_flags & METH_O) != 0) {
    all.append(py::handle(args));
  } else if (args != nullptr) {
    for (const py::handle argument : py::reinterpret_borrow<py::tuple>(args)) all.append(argument);
  }
  return py::list(
      all[py::slice(static_cast<py::ssize_t>(hook.first), static_cast<py::ssize_t>(hook.first + hook.count), 1)]);
}

// False with what was raised.
bool look_first(const Hook& hook, PyObject* self, PyObject* args) noexcept {
  if (hook.look == nullptr) return true;
  try {
    const auto look = py::reinterpret_borrow<py::object>(hook.look);  // it may be taken away meanwhile
    const py::list arguments = arguments_of(hook, self, args);
    if (arguments.size() == hook.count) look(*arguments);
    return true;
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return false;
}

template <size_t kPlace>
PyObject* call(PyObject* self, PyObject* args) {
  const PyCFunction original = hooks[kPlace].original;
  return look_first(hooks[kPlace], self, args) ? original(self, args) : nullptr;
}

template <size_t kPlace>
PyObject* call_with_keywords(PyObject* self, PyObject* args, PyObject* keywords) {
  const auto original = reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(hooks[kPlace].original));
  return look_first(hooks[kPlace], self, args) ? original(self, args, keywords) : nullptr;
}

template <size_t... kCapacity>
PyCFunction function_at(size_t place, bool keywords, std::index_sequence<kCapacity...>) {
  static const std::array plain = {&call<kCapacity>...};
  static const std::array keyed = {&call_with_keywords<kCapacity>...};
  return keywords ? reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(keyed[place])) : plain[place];
}

PyMethodDef* definition_of(const py::handle& method) {
  PyObject* object = method.ptr();
  if (PyCFunction_Check(object)) return reinterpret_cast<PyCFunctionObject*>(object)->m_ml;
  if (Py_IS_TYPE(object, &PyMethodDescr_Type) || Py_IS_TYPE(object, &PyClassMethodDescr_Type)) {
    return reinterpret_cast<PyMethodDescrObject*>(object)->d_method;
  }
  throw py::type_error("hook_method() takes a method that is written in C");
}

// Who has exchanged the pointer after us still calls us.
void remove(size_t place, PyCFunction ours) {
  Hook& hook = hooks[place];
  const auto look = py::reinterpret_steal<py::object>(std::exchange(hook.look, nullptr));
  if (hook.definition->ml_meth != ours) return;
  hook.definition->ml_meth = hook.original;
  hook = {};
}

py::cpp_function hook_method(const py::handle& method, const py::object& look, size_t first, size_t count) {
  PyMethodDef* definition = definition_of(method);
  const int convention = definition->ml_flags & ~(METH_CLASS | METH_STATIC | METH_COEXIST);
  const bool keywords = convention == (METH_VARARGS | METH_KEYWORDS);
  if (!keywords && convention != METH_VARARGS && convention != METH_NOARGS && convention != METH_O) {
    throw py::type_error("hook_method() does not know how this method is called");
  }
  const auto free = std::find_if(hooks.begin(), hooks.end(), [](const Hook& hook) { return !hook.definition; });
  if (free == hooks.end()) throw std::length_error("hook_method() has no place left");
  const auto place = static_cast<size_t>(free - hooks.begin());
  const PyCFunction ours = function_at(place, keywords, std::make_index_sequence<kHooks>());
  *free = {definition, std::exchange(definition->ml_meth, ours), py::object(look).release().ptr(), first, count};
  return py::cpp_function([place, ours] { remove(place, ours); });
}

}  // namespace

void bind_call_before(py::module_& m) {
  m.def("hook_method", &hook_method, py::arg("method"), py::arg("look"), py::arg("first"), py::arg("count"));
}

}  // namespace torchnan
