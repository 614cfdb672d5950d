// csrc/python/frame_walk.cpp as a separate extension, to be tried under every installed Python.
#include "python/frame_walk.h"

namespace {

// [(code, line, first local or None), ...], innermost first, read without the GIL as the core does.
PyObject* stack(PyObject*, PyObject*) {
  torchnan::RawFrame frames[64];
  size_t count = 0;
  Py_BEGIN_ALLOW_THREADS;
  count = torchnan::walk_frames(frames, 64);
  Py_END_ALLOW_THREADS;
  PyObject* list = PyList_New(0);
  for (size_t i = 0; i < count; ++i) {
    PyObject* code = reinterpret_cast<PyObject*>(frames[i].code);
    PyObject* first = frames[i].first_local != nullptr ? frames[i].first_local : Py_None;
    const int line = PyCode_Addr2Line(frames[i].code, frames[i].instruction);
    PyObject* frame = Py_BuildValue("(OiO)", code, line, first);
    PyList_Append(list, frame);
    Py_DECREF(frame);
  }
  return list;
}

PyMethodDef methods[] = {{"stack", stack, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "frame_walk_module", "", -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_frame_walk_module() { return PyModule_Create(&module); }
