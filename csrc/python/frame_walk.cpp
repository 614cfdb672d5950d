#include "python/frame_walk.h"

#if PY_VERSION_HEX < 0x030a0000 || PY_VERSION_HEX >= 0x030f0000
#error "torchnan reads Python's frames directly and knows those of Python 3.10 to 3.14"
#endif

#if PY_VERSION_HEX < 0x030b0000
#include <frameobject.h>
#else
#define Py_BUILD_CORE
#if PY_VERSION_HEX < 0x030e0000
#include <internal/pycore_frame.h>
#else
#include <internal/pycore_interpframe.h>
#endif
#undef Py_BUILD_CORE
#endif

namespace torchnan {
namespace {

#if PY_VERSION_HEX < 0x030b0000  // Objects/frameobject.c: frames are objects

using Frame = PyFrameObject;

Frame* innermost(PyThreadState* thread) { return thread->frame; }
Frame* caller(Frame* frame) { return frame->f_back; }
bool is_python_code(Frame*) { return true; }
RawFrame describe(Frame* frame) {
  PyObject* first = frame->f_code->co_argcount > 0 ? frame->f_localsplus[0] : nullptr;
  return {frame->f_code, frame->f_lasti * static_cast<int>(sizeof(_Py_CODEUNIT)), first};
}
PyObject* free_variable(Frame* frame, const PyCodeObject* code, int index) {
  return frame->f_localsplus[code->co_nlocals + PyTuple_GET_SIZE(code->co_cellvars) + index];
}

#else  // Include/internal/pycore_frame.h; from 3.14 on pycore_interpframe.h

using Frame = _PyInterpreterFrame;

Frame* caller(Frame* frame) { return frame->previous; }

#if PY_VERSION_HEX < 0x030d0000
Frame* innermost(PyThreadState* thread) { return thread->cframe->current_frame; }
#else
Frame* innermost(PyThreadState* thread) { return thread->current_frame; }
#endif

// The code, or None.
#if PY_VERSION_HEX < 0x030d0000
PyObject* executable(Frame* frame) { return reinterpret_cast<PyObject*>(frame->f_code); }
#elif PY_VERSION_HEX < 0x030e0000
PyObject* executable(Frame* frame) { return frame->f_executable; }
#else
PyObject* executable(Frame* frame) { return PyStackRef_AsPyObjectBorrow(frame->f_executable); }
#endif

#if PY_VERSION_HEX < 0x030e0000
PyObject* local(Frame* frame, int index) { return frame->localsplus[index]; }
#else
PyObject* local(Frame* frame, int index) {
  const _PyStackRef reference = frame->localsplus[index];
  return PyStackRef_IsNull(reference) ? nullptr : PyStackRef_AsPyObjectBorrow(reference);
}
#endif

bool is_python_code(Frame* frame) { return PyCode_Check(executable(frame)) && !_PyFrame_IsIncomplete(frame); }
RawFrame describe(Frame* frame) {
  auto* code = reinterpret_cast<PyCodeObject*>(executable(frame));
  PyObject* first = code->co_argcount > 0 ? local(frame, 0) : nullptr;
  return {code, _PyInterpreterFrame_LASTI(frame) * static_cast<int>(sizeof(_Py_CODEUNIT)), first};
}
PyObject* free_variable(Frame* frame, const PyCodeObject* code, int index) {
  return local(frame, code->co_nlocalsplus - code->co_nfreevars + index);
}

#endif

thread_local Frame* end = nullptr;  // outside of the outermost frame

}  // namespace

size_t walk_frames(RawFrame* frames, size_t capacity) noexcept {
  PyThreadState* thread = PyGILState_GetThisThreadState();
  if (thread == nullptr) return 0;
  size_t count = 0;
  const Frame* const last = end;
  Frame* outermost = nullptr;
  for (Frame* frame = innermost(thread); frame != last && frame != nullptr; frame = caller(frame)) {
    if (!is_python_code(frame)) continue;
    if (count < capacity) {
      frames[count++] = describe(frame);
    } else {
      outermost = frame;
    }
  }
  if (outermost != nullptr) frames[capacity - 1] = describe(outermost);
  return count;
}

void end_stack_here() noexcept { end = innermost(PyThreadState_Get()); }

void continue_stack() noexcept { end = nullptr; }

PyObject* cell_of_free_variable(const PyCodeObject* code, int index) noexcept {
  PyThreadState* thread = PyGILState_GetThisThreadState();
  if (thread == nullptr) return nullptr;
  for (Frame* frame = innermost(thread); frame != nullptr; frame = caller(frame)) {
    if (is_python_code(frame) && describe(frame).code == code) return free_variable(frame, code, index);
  }
  return nullptr;
}

}  // namespace torchnan
