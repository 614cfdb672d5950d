#include <Python.h>

#include "python/bindings.h"

#if PY_VERSION_HEX < 0x030a0000 || PY_VERSION_HEX >= 0x030f0000
#error "torchnan reads the state of the GIL directly and knows that of Python 3.10 to 3.14"
#endif

// CPython's headers are C: without these lines they use <stdatomic.h>, and declare a function twice.
#undef HAVE_STD_ATOMIC
#undef _PyGC_FINALIZED
#define Py_BUILD_CORE
#if PY_VERSION_HEX < 0x030c0000
#include <internal/pycore_runtime.h>
#else
#include <internal/pycore_interp.h>
#endif
#undef Py_BUILD_CORE

namespace torchnan {

const unsigned long* python_thread_switches() {
#if PY_VERSION_HEX < 0x030c0000
  return &_PyRuntime.ceval.gil.switch_number;
#else
  return &PyInterpreterState_Get()->ceval.gil->switch_number;
#endif
}

}  // namespace torchnan
