#include "python/bindings.h"

namespace py = pybind11;

namespace torchnan {

// Keeps other threads from running meanwhile: one of them may be building a tuple, and Python raises SystemError if a
// tuple under construction has another reference. In Python code, a list of all objects would live long enough for this
// to happen.
py::list instances_of(const py::type& type) {
  const py::object get_objects = py::module_::import("gc").attr("get_objects");
  const py::list all = get_objects();
  py::list found;
  for (const py::handle one : all) {  // not isinstance(), which may run code of the objects
    if (PyType_IsSubtype(Py_TYPE(one.ptr()), reinterpret_cast<PyTypeObject*>(type.ptr())) != 0) found.append(one);
  }
  return found;
}

}  // namespace torchnan
