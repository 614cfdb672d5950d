#include "python/bindings.h"

#include <array>
#include <cstddef>
#include <memory_resource>
#include <unordered_set>

namespace py = pybind11;

namespace torchnan {
namespace {

py::str interned(const char* name) { return py::reinterpret_steal<py::str>(PyUnicode_InternFromString(name)); }

// What the class of a module has under this name, or null.
PyObject* in_class(const py::object& module, const py::str& name) {
  return _PyType_Lookup(Py_TYPE(module.ptr()), name.ptr());
}

// A method of torch.nn.Module.
class ModuleMethod {
 public:
  explicit ModuleMethod(const char* name)
      : name_(interned(name)), function_(py::module_::import("torch.nn").attr("Module").attr(name_)) {}

  const py::str& name() const { return name_; }

  bool is_in_class_of(const py::object& module) const { return in_class(module, name_) == function_.ptr(); }

  // Whether a module has this method, and not another one in its class or in itself.
  bool is_method_of(const py::object& module) const {
    const py::object bound = module.attr(name_);
    return PyMethod_Check(bound.ptr()) && PyMethod_GET_SELF(bound.ptr()) == module.ptr() &&
           PyMethod_GET_FUNCTION(bound.ptr()) == function_.ptr();
  }

 private:
  py::str name_;
  py::object function_;
};

// Created once, because they are looked up in each module.
struct Names {
  ModuleMethod named_buffers{"named_buffers"};
  ModuleMethod named_members{"_named_members"};
  ModuleMethod named_modules{"named_modules"};
  py::str buffers = interned("_buffers");
  py::str modules = interned("_modules");
  py::str getattribute = interned("__getattribute__");
  // How Python itself reads attributes.
  py::handle usual_getattribute = _PyType_Lookup(&PyBaseObject_Type, getattribute.ptr());
};
const Names* names = nullptr;

// Reads attributes of a module. Of a usual one, it reads them in the module's own dict, which is ten times faster.
class Attributes {
 public:
  explicit Attributes(const py::object& module) : module_(module) {
    if (in_class(module, names->getattribute) != names->usual_getattribute.ptr() ||
        !names->named_modules.is_in_class_of(module) || in_class(module, names->buffers) != nullptr ||
        in_class(module, names->modules) != nullptr) {
      return;
    }
    own_ = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(module.ptr(), nullptr));
    if (!own_) throw py::error_already_set();
  }

  // Whether named_modules() is the method of torch.nn.Module.
  bool has_usual_named_modules() const {
    return own_ ? PyDict_GetItemWithError(own_.ptr(), names->named_modules.name().ptr()) == nullptr
                : names->named_modules.is_method_of(module_);
  }

  py::object read(const py::str& name) const {
    PyObject* const found = own_ ? PyDict_GetItemWithError(own_.ptr(), name.ptr()) : nullptr;
    return found != nullptr ? py::reinterpret_borrow<py::object>(found) : module_.attr(name);
  }

 private:
  const py::object& module_;
  py::object own_;  // the module's dict, if what lies there is what an attribute is
};

using Visited = std::pmr::unordered_set<PyObject*>;

// Visits modules as Module.named_modules() does. Takes a reference: reading an attribute may run code of the module.
bool may_have_buffers_below(const py::object& module, Visited& visited) {
  if (!visited.insert(module.ptr()).second) return false;
  const Attributes attributes(module);
  if (!attributes.has_usual_named_modules()) return true;
  const py::object buffers = attributes.read(names->buffers);
  if (!PyDict_Check(buffers.ptr()) || PyDict_GET_SIZE(buffers.ptr()) > 0) return true;
  const py::object modules = attributes.read(names->modules);
  if (!PyDict_Check(modules.ptr())) return true;
  for (const auto& [name, child] : py::reinterpret_borrow<py::dict>(modules)) {
    if (child.is_none()) continue;
    if (may_have_buffers_below(py::reinterpret_borrow<py::object>(child), visited)) return true;
  }
  return false;
}

bool may_have_buffers(const py::object& model) {
  std::array<std::byte, 4096> room;  // for a hundred modules; those of a larger model take more of the heap
  std::pmr::monotonic_buffer_resource memory(room.data(), room.size());
  Visited visited(&memory);
  return !names->named_buffers.is_method_of(model) || !names->named_members.is_method_of(model) ||
         may_have_buffers_below(model, visited);
}

}  // namespace

void bind_buffers(py::module_& m) {
  names = new Names;
  m.def("may_have_buffers", &may_have_buffers, py::arg("model"));
}

}  // namespace torchnan
