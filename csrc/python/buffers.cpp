#include "python/bindings.h"

#include <unordered_set>

namespace py = pybind11;

namespace torchnan {
namespace {

// A method of torch.nn.Module.
class ModuleMethod {
 public:
  explicit ModuleMethod(const char* name)
      : name_(py::reinterpret_steal<py::str>(PyUnicode_InternFromString(name))),
        function_(py::module_::import("torch.nn").attr("Module").attr(name_)) {}

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
  py::str buffers = py::reinterpret_steal<py::str>(PyUnicode_InternFromString("_buffers"));
  py::str modules = py::reinterpret_steal<py::str>(PyUnicode_InternFromString("_modules"));
};
const Names* names = nullptr;

using Visited = std::unordered_set<PyObject*>;

// Visits modules as Module.named_modules() does. Takes a reference: reading an attribute may run code of the module.
bool may_have_buffers_below(const py::object& module, Visited& visited) {
  if (!visited.insert(module.ptr()).second) return false;
  if (!names->named_modules.is_method_of(module)) return true;
  const py::object buffers = module.attr(names->buffers);
  if (!PyDict_Check(buffers.ptr()) || PyDict_GET_SIZE(buffers.ptr()) > 0) return true;
  const py::object modules = module.attr(names->modules);
  if (!PyDict_Check(modules.ptr())) return true;
  for (const auto& [name, child] : py::reinterpret_borrow<py::dict>(modules)) {
    if (child.is_none()) continue;
    if (may_have_buffers_below(py::reinterpret_borrow<py::object>(child), visited)) return true;
  }
  return false;
}

bool may_have_buffers(const py::object& model) {
  Visited visited;
  return !names->named_buffers.is_method_of(model) || !names->named_members.is_method_of(model) ||
         may_have_buffers_below(model, visited);
}

}  // namespace

void bind_buffers(py::module_& m) {
  names = new Names;
  m.def("may_have_buffers", &may_have_buffers, py::arg("model"));
}

}  // namespace torchnan
