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
  PyObject* callback = nullptr;  // owned; null: only the original is called
  size_t first = 0;
  size_t count = 0;
};

// Accessed with the GIL only. A C function has no state of its own, so each slot has functions of its own.
constexpr size_t kHooks = 16;
constexpr size_t kMostSelected = 2;
std::array<Hook, kHooks> hooks;

// The arguments that a callback is called with, borrowed from the call.
class Selection {
 public:
  Selection(const Hook& hook, PyObject* self, PyObject* args) : skip_(hook.first), most_(hook.count) {
    if (!PyModule_Check(self)) offer(self);
    if ((hook.definition->ml_flags & METH_O) != 0) {
      offer(args);
    } else if (args != nullptr) {
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) offer(PyTuple_GET_ITEM(args, i));
    }
  }

  bool is_complete() const { return count_ == most_; }  // the call may have fewer arguments
  PyObject* const* data() const { return selected_.data(); }
  size_t size() const { return count_; }

 private:
  void offer(PyObject* argument) {
    if (skip_ > 0) {
      --skip_;
    } else if (count_ < most_) {
      selected_[count_++] = argument;
    }
  }

  size_t skip_;
  const size_t most_;
  size_t count_ = 0;
  std::array<PyObject*, kMostSelected> selected_;
};

// Returns false with the Python error set if the callback raised.
bool call_callback(const Hook& hook, PyObject* self, PyObject* args) {
  if (hook.callback == nullptr) return true;
  const Selection selection(hook, self, args);
  if (!selection.is_complete()) return true;
  const auto callback = py::reinterpret_borrow<py::object>(hook.callback);  // the hook may be removed meanwhile
  PyObject* const answer = PyObject_Vectorcall(callback.ptr(), selection.data(), selection.size(), nullptr);
  Py_XDECREF(answer);
  return answer != nullptr;
}

template <size_t kSlot>
PyObject* call(PyObject* self, PyObject* args) {
  const PyCFunction original = hooks[kSlot].original;
  return call_callback(hooks[kSlot], self, args) ? original(self, args) : nullptr;
}

template <size_t kSlot>
PyObject* call_with_keywords(PyObject* self, PyObject* args, PyObject* keywords) {
  const auto original = reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(hooks[kSlot].original));
  return call_callback(hooks[kSlot], self, args) ? original(self, args, keywords) : nullptr;
}

template <size_t... kCapacity>
PyCFunction function_at(size_t slot, bool keywords, std::index_sequence<kCapacity...>) {
  static const std::array plain = {&call<kCapacity>...};
  static const std::array keyed = {&call_with_keywords<kCapacity>...};
  return keywords ? reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(keyed[slot])) : plain[slot];
}

PyMethodDef* definition_of(const py::handle& method) {
  PyObject* object = method.ptr();
  if (PyCFunction_Check(object)) return reinterpret_cast<PyCFunctionObject*>(object)->m_ml;
  if (Py_IS_TYPE(object, &PyMethodDescr_Type) || Py_IS_TYPE(object, &PyClassMethodDescr_Type)) {
    return reinterpret_cast<PyMethodDescrObject*>(object)->d_method;
  }
  throw py::type_error("hook_method() takes a method that is written in C");
}

// If the pointer was replaced by someone else after us, the hook stays, without a callback.
void remove(size_t slot, PyCFunction ours) {
  Hook& hook = hooks[slot];
  const auto callback = py::reinterpret_steal<py::object>(std::exchange(hook.callback, nullptr));
  if (hook.definition->ml_meth != ours) return;
  hook.definition->ml_meth = hook.original;
  hook = {};
}

py::cpp_function hook_method(const py::handle& method, const py::object& callback, size_t first, size_t count) {
  PyMethodDef* definition = definition_of(method);
  const int convention = definition->ml_flags & ~(METH_CLASS | METH_STATIC | METH_COEXIST);
  const bool keywords = convention == (METH_VARARGS | METH_KEYWORDS);
  if (!keywords && convention != METH_VARARGS && convention != METH_NOARGS && convention != METH_O) {
    throw py::type_error("hook_method() does not know how this method is called");
  }
  if (count > kMostSelected) throw std::length_error("hook_method() passes on two arguments at most");
  const auto free = std::find_if(hooks.begin(), hooks.end(), [](const Hook& hook) { return !hook.definition; });
  if (free == hooks.end()) throw std::length_error("hook_method() has no slot left");
  const auto slot = static_cast<size_t>(free - hooks.begin());
  const PyCFunction ours = function_at(slot, keywords, std::make_index_sequence<kHooks>());
  *free = {definition, std::exchange(definition->ml_meth, ours), py::object(callback).release().ptr(), first, count};
  return py::cpp_function([slot, ours] { remove(slot, ours); });
}

}  // namespace

void bind_method_hooks(py::module_& m) {
  m.def("hook_method", &hook_method, py::arg("method"), py::arg("callback"), py::arg("first"), py::arg("count"));
}

}  // namespace torchnan
