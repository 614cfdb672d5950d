#include "python/optimizer_step.h"

#include <algorithm>
#include <limits>

#include <torch/csrc/autograd/python_variable.h>

#include "detection/thread_state.h"
#include "intercept/proved_step.h"

namespace py = pybind11;

namespace torchnan {
namespace {

// A step with one of these computes something else.
constexpr auto kOtherSteps = {"amsgrad", "capturable", "differentiable", "foreach", "fused"};

// Borrowed; null if there is no such item, or the mapping is no dict.
PyObject* item(PyObject* mapping, PyObject* key) {
  if (mapping == nullptr || !PyDict_Check(mapping)) return nullptr;
  PyObject* const found = PyDict_GetItemWithError(mapping, key);
  if (found == nullptr) PyErr_Clear();
  return found;
}

// A number that Python computes with; NaN for anything else, a tensor for example.
double number(PyObject* object) {
  if (object != nullptr && PyFloat_CheckExact(object)) return PyFloat_AS_DOUBLE(object);
  if (object == nullptr || !PyLong_CheckExact(object)) return std::numeric_limits<double>::quiet_NaN();
  int overflow = 0;
  const auto whole = static_cast<double>(PyLong_AsLongAndOverflow(object, &overflow));
  return overflow == 0 ? whole : std::numeric_limits<double>::quiet_NaN();
}

// Null if it is no tensor.
const at::Tensor* tensor(PyObject* object) {
  return object != nullptr && THPVariable_Check(object) ? &THPVariable_Unpack(object) : nullptr;
}

// The keys of a parameter's state. Created once, as they are looked up for each parameter.
struct Keys {
  PyObject* first_moment = PyUnicode_InternFromString("exp_avg");
  PyObject* second_moment = PyUnicode_InternFromString("exp_avg_sq");
  PyObject* steps = PyUnicode_InternFromString("step");
};
const Keys* keys = nullptr;

bool add_parameter(ProvedStep& step, PyObject* parameter, PyObject* state, const AdamHyperparameters& hyperparameters) {
  const at::Tensor* const updated = tensor(parameter);
  if (updated == nullptr) return false;
  const at::Tensor& gradient = updated->grad();
  if (!gradient.defined()) return true;  // it is left as it is
  PyObject* const own = item(state, parameter);
  const at::Tensor* const first = tensor(item(own, keys->first_moment));
  const at::Tensor* const second = tensor(item(own, keys->second_moment));
  const at::Tensor* const steps = tensor(item(own, keys->steps));
  if (first == nullptr || second == nullptr || steps == nullptr) return false;
  return step.add(*updated, gradient, *first, *second, *steps, hyperparameters);
}

bool add_group(ProvedStep& step, PyObject* group, PyObject* state) {
  const auto option = [group](const char* name) { return item(group, py::str(name).ptr()); };
  for (const char* other : kOtherSteps) {
    PyObject* const is_set = option(other);
    if (is_set != nullptr && is_set != Py_None && is_set != Py_False) return false;
  }
  PyObject* const betas = option("betas");
  PyObject* const parameters = option("params");
  if (betas == nullptr || !PyTuple_CheckExact(betas) || PyTuple_GET_SIZE(betas) != 2) return false;
  if (parameters == nullptr || !PyList_CheckExact(parameters)) return false;
  const AdamHyperparameters hyperparameters{number(option("lr")), number(PyTuple_GET_ITEM(betas, 0)),
                                            number(PyTuple_GET_ITEM(betas, 1)), number(option("eps")),
                                            number(option("weight_decay"))};
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parameters); ++i) {
    if (!add_parameter(step, PyList_GET_ITEM(parameters, i), state, hyperparameters)) return false;
  }
  return true;
}

bool start_proved_step(const py::list& groups, const py::object& state) {
  const DetectionSession* const session = ThreadState::current().session();
  ProvedStep& step = ProvedStep::current();
  if (session == nullptr || step.is_under_way() || !ProvedStep::is_possible(*session)) return false;
  const bool is_proved = std::all_of(
      groups.begin(), groups.end(), [&](const py::handle& group) { return add_group(step, group.ptr(), state.ptr()); });
  const bool is_started = is_proved && step.try_start();
  if (!is_started) step.clear();
  return is_started;
}

void finish_proved_step(bool is_completed) {
  ProvedStep& step = ProvedStep::current();
  if (step.is_under_way()) step.finish(is_completed);
}

}  // namespace

void bind_proved_steps(py::module_& m) {
  keys = new Keys;
  m.def("start_proved_step", &start_proved_step, py::arg("groups"), py::arg("state"));
  m.def("finish_proved_step", &finish_proved_step, py::arg("is_completed"));
}

}  // namespace torchnan
