#include "python/bindings.h"

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
  bool after = false;
};

// Accessed with the GIL only. A C function has no state, so each slot has separate functions.
constexpr size_t kHooks = 32;
constexpr size_t kMostSelected = 2;
std::array<Hook, kHooks> hooks;

// The arguments for a callback, borrowed from the call.
class Selection {
 public:
  Selection(const Hook& hook, PyObject* self, PyObject* args) : skip_(hook.first), most_(hook.count) {
    if (self != nullptr && !PyModule_Check(self)) offer(self);  // a static method has none
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

// The same for a callback that runs after the call, even if the call failed. Takes over the result.
PyObject* call_callback_after(const Hook& hook, PyObject* self, PyObject* args, PyObject* result) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  const bool is_called = call_callback(hook, self, args);
  if (is_called) {
    PyErr_Restore(type, value, traceback);
    return result;
  }
  for (PyObject* const object : {type, value, traceback, result}) Py_XDECREF(object);
  return nullptr;
}

template <typename Original>
PyObject* call_hooked(const Hook& hook, PyObject* self, PyObject* args, Original original) {
  if (hook.after) return call_callback_after(hook, self, args, original());
  return call_callback(hook, self, args) ? original() : nullptr;
}

template <size_t kSlot>
PyObject* call(PyObject* self, PyObject* args) {
  const PyCFunction original = hooks[kSlot].original;
  return call_hooked(hooks[kSlot], self, args, [&] { return original(self, args); });
}

template <size_t kSlot>
PyObject* call_with_keywords(PyObject* self, PyObject* args, PyObject* keywords) {
  const auto original = reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(hooks[kSlot].original));
  return call_hooked(hooks[kSlot], self, args, [&] { return original(self, args, keywords); });
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

// If another library replaced the pointer after us, the hook stays, without a callback.
void remove(size_t slot, PyCFunction ours) {
  Hook& hook = hooks[slot];
  const auto callback = py::reinterpret_steal<py::object>(std::exchange(hook.callback, nullptr));
  if (hook.definition->ml_meth != ours) return;
  hook.definition->ml_meth = hook.original;
  hook = {};
}

py::cpp_function hook_method(const py::handle& method, const py::object& callback, size_t first, size_t count,
                             bool after) {
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
  PyObject* const owned = py::object(callback).release().ptr();
  *free = {definition, std::exchange(definition->ml_meth, ours), owned, first, count, after};
  return py::cpp_function([slot, ours] { remove(slot, ours); });
}

// -- an attribute; accessed with the GIL only

struct AttributeHook {
  PyGetSetDef* definition = nullptr;  // null: free
  getter get = nullptr;
  setter set = nullptr;
  PyObject* callback = nullptr;  // owned; null: only the originals are called
};
AttributeHook attribute;

bool call_attribute_callback(PyObject* argument) {
  if (attribute.callback == nullptr) return true;
  const auto callback = py::reinterpret_borrow<py::object>(attribute.callback);
  PyObject* const answer = PyObject_CallOneArg(callback.ptr(), argument);
  Py_XDECREF(answer);
  return answer != nullptr;
}

PyObject* get_attribute(PyObject* self, void* closure) {
  const getter original = attribute.get;
  return call_attribute_callback(self) ? original(self, closure) : nullptr;
}

int set_attribute(PyObject* self, PyObject* value, void* closure) {
  const setter original = attribute.set;
  if (value != nullptr && !call_attribute_callback(value)) return -1;
  return original(self, value, closure);
}

void remove_attribute_hook() {
  const auto callback = py::reinterpret_steal<py::object>(std::exchange(attribute.callback, nullptr));
  if (attribute.definition->get != &get_attribute || attribute.definition->set != &set_attribute) return;
  attribute.definition->get = attribute.get;
  attribute.definition->set = attribute.set;
  attribute = {};
}

py::cpp_function hook_attribute(const py::handle& descriptor, const py::object& callback) {
  if (!Py_IS_TYPE(descriptor.ptr(), &PyGetSetDescr_Type)) {
    throw py::type_error("hook_attribute() takes an attribute that is written in C");
  }
  PyGetSetDef* definition = reinterpret_cast<PyGetSetDescrObject*>(descriptor.ptr())->d_getset;
  if (definition->get == nullptr || definition->set == nullptr) {
    throw py::type_error("hook_attribute() takes an attribute that can be read and written");
  }
  if (attribute.definition != nullptr) throw std::length_error("hook_attribute() has hooked an attribute already");
  attribute = {definition, std::exchange(definition->get, &get_attribute),
               std::exchange(definition->set, &set_attribute), py::object(callback).release().ptr()};
  return py::cpp_function(&remove_attribute_hook);
}

}  // namespace

void bind_method_hooks(py::module_& m) {
  m.def("hook_method", &hook_method, py::arg("method"), py::arg("callback"), py::arg("first"), py::arg("count"),
        py::arg("after") = false);
  m.def("hook_attribute", &hook_attribute, py::arg("descriptor"), py::arg("callback"));
}

}  // namespace torchnan
