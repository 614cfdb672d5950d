#include "python/instances.h"

namespace py = pybind11;

namespace torchnan {

// In one go, without letting another thread run: it may be in the middle of making a tuple, and Python refuses to go on
// (SystemError) with one that somebody else refers to. In Python the list of all objects lives for long enough.
py::list instances_of(const py::type& type) {
  const py::object get_objects = py::module_::import("gc").attr("get_objects");
  const py::list all = get_objects();
  py::list found;
  for (const py::handle one : all) {  // not isinstance(), which would run code of the objects
    if (PyType_IsSubtype(Py_TYPE(one.ptr()), reinterpret_cast<PyTypeObject*>(type.ptr())) != 0) found.append(one);
  }
  return found;
}

}  // namespace torchnan
