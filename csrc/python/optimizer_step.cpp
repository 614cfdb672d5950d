#include "python/bindings.h"

#include <algorithm>
#include <limits>

#include "detection/thread_state.h"
#include "intercept/proved_step.h"
#include "python/tensor_in.h"

namespace py = pybind11;

namespace torchnan {
namespace {

// A step with one of these options computes something else.
constexpr auto kOtherSteps = {"capturable", "differentiable"};

// Borrowed; null if there is no such item, or the mapping is not a dict.
PyObject* item(PyObject* mapping, PyObject* key) {
  if (mapping == nullptr || !PyDict_Check(mapping)) return nullptr;
  PyObject* const found = PyDict_GetItemWithError(mapping, key);
  if (found == nullptr) PyErr_Clear();
  return found;
}

// A number that Python computes with; NaN for anything else, such as a tensor.
double number(PyObject* object) {
  if (object != nullptr && PyFloat_CheckExact(object)) return PyFloat_AS_DOUBLE(object);
  if (object == nullptr || !PyLong_CheckExact(object)) return std::numeric_limits<double>::quiet_NaN();
  int overflow = 0;
  const auto whole = static_cast<double>(PyLong_AsLongAndOverflow(object, &overflow));
  return overflow == 0 ? whole : std::numeric_limits<double>::quiet_NaN();
}

// The keys of a parameter's state. Created once, because they are looked up for each parameter.
struct Keys {
  PyObject* first_moment = PyUnicode_InternFromString("exp_avg");
  PyObject* second_moment = PyUnicode_InternFromString("exp_avg_sq");
  PyObject* largest_second_moment = PyUnicode_InternFromString("max_exp_avg_sq");
  PyObject* steps = PyUnicode_InternFromString("step");
};
const Keys* keys = nullptr;

// The states of an optimizer's parameters. They are usually requested in the order of the mapping, which avoids a
// lookup: looking one up hashes the parameter, which runs Python code.
class States {
 public:
  explicit States(PyObject* states) : states_(states) {}

  // Borrowed; null if there is none.
  PyObject* of(PyObject* parameter) {
    Py_ssize_t after = next_;
    PyObject* key = nullptr;
    PyObject* state = nullptr;
    if (!PyDict_Next(states_, &after, &key, &state) || key != parameter) return item(states_, parameter);
    next_ = after;
    return state;
  }

 private:
  PyObject* const states_;
  Py_ssize_t next_ = 0;
};

// How the parameters of a group are updated.
struct Group {
  AdamHyperparameters hyperparameters;
  bool is_amsgrad;
  int64_t results;  // of the operations on each parameter
};

bool add_parameter(ProvedStep& step, PyObject* parameter, States& states, const Group& group) {
  const at::Tensor* const updated = tensor_in(parameter);
  if (updated == nullptr) return false;
  const at::Tensor& gradient = updated->grad();
  if (!gradient.defined()) return true;  // a parameter without a gradient is not updated
  PyObject* const own = states.of(parameter);
  const at::Tensor* const first = tensor_in(item(own, keys->first_moment));
  const at::Tensor* const second = tensor_in(item(own, keys->second_moment));
  const at::Tensor* const largest = group.is_amsgrad ? tensor_in(item(own, keys->largest_second_moment)) : nullptr;
  const at::Tensor* const steps = tensor_in(item(own, keys->steps));
  if (first == nullptr || second == nullptr || steps == nullptr) return false;
  if (group.is_amsgrad && largest == nullptr) return false;
  return step.add({*updated, gradient, *first, *second, largest, *steps}, group.hyperparameters, group.results);
}

// The number of results for each parameter: at most three moments, the parameter, and their intermediate values.
int64_t number_of_results(const AdamHyperparameters& hyperparameters, bool is_amsgrad, bool is_fused) {
  if (is_fused) return is_amsgrad ? 4 : 3;
  return 7 + (hyperparameters.weight_decay != 0 ? 1 : 0) + (is_amsgrad ? 1 : 0);
}

bool add_group(ProvedStep& step, PyObject* group, States& states) {
  const auto option = [group](const char* name) { return item(group, py::str(name).ptr()); };
  const auto is_set = [&option](const char* name) {
    PyObject* const value = option(name);
    return value != nullptr && value != Py_None && value != Py_False;
  };
  if (std::any_of(kOtherSteps.begin(), kOtherSteps.end(), is_set)) return false;
  PyObject* const betas = option("betas");
  PyObject* const parameters = option("params");
  if (betas == nullptr || !PyTuple_CheckExact(betas) || PyTuple_GET_SIZE(betas) != 2) return false;
  if (parameters == nullptr || !PyList_CheckExact(parameters)) return false;
  const AdamHyperparameters hyperparameters{number(option("lr")), number(PyTuple_GET_ITEM(betas, 0)),
                                            number(PyTuple_GET_ITEM(betas, 1)), number(option("eps")),
                                            number(option("weight_decay"))};
  const bool is_amsgrad = is_set("amsgrad");
  const Group how{hyperparameters, is_amsgrad, number_of_results(hyperparameters, is_amsgrad, is_set("fused"))};
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parameters); ++i) {
    if (!add_parameter(step, PyList_GET_ITEM(parameters, i), states, how)) return false;
  }
  return true;
}

bool start_proved_step(const py::list& groups, const py::object& state) {
  const DetectionSession* const session = ThreadState::current().session();
  ProvedStep& step = ProvedStep::current();
  if (session == nullptr || step.is_under_way() || !ProvedStep::is_possible(*session)) return false;
  States states(state.ptr());
  const bool is_proved = std::all_of(groups.begin(), groups.end(),
                                     [&](const py::handle& group) { return add_group(step, group.ptr(), states); });
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
