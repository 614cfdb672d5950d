#include <torch/csrc/utils/pybind.h>  // must be first: converts tensors to and from Python

#include "python/call_python.h"

#include <stdexcept>

#include <torch/csrc/Exceptions.h>

#include "detection/user_notifier.h"
#include "python/convert.h"

namespace py = pybind11;

namespace torchnan {
namespace {

class PythonError final : public python_error, public UserFacingException {};

// Whether a signal handler of the program raised it, in the middle of what torchnan did.
bool is_raised_by_handler(const py::error_already_set& raised) {
  try {
    if (raised.trace()) PyException_SetTraceback(raised.value().ptr(), raised.trace().ptr());
    const auto signals = py::module_::import("torchnan.detection.signal_handlers");
    return !signals.attr("raised_in")(raised.value()).is_none();
  } catch (const py::error_already_set&) {
    return false;
  }
}

}  // namespace

bool is_python_ending() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsInitialized() == 0 || Py_IsFinalizing() != 0;
#else
  return Py_IsInitialized() == 0 || _Py_IsFinalizing() != 0;
#endif
}

void raise_in_caller() {
  PythonError carried;
  carried.persist();
  throw carried;
}

void throw_from_python(py::error_already_set& raised) {
  if (raised.matches(PyExc_Exception) && !is_raised_by_handler(raised)) {
    throw std::runtime_error(error_message(raised));
  }
  raised.restore();
  raise_in_caller();
}

std::shared_ptr<py::object> reachable_from_threads(py::object object) {
  const auto release = [](py::object* last) {
    if (is_python_ending()) {
      last->release();
      delete last;
      return;
    }
    const Gil gil;
    delete last;
  };
  return {new py::object(std::move(object)), release};
}

}  // namespace torchnan
