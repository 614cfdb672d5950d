#include "python/bindings.h"

#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include "ops/measure.h"

namespace py = pybind11;

namespace torchnan {
namespace {

py::object measure_gradients(const py::list& parameters) {
  std::vector<at::Tensor> gradients;
  py::list names;
  for (const auto& named : parameters) {
    const auto [name, parameter] = named.cast<std::pair<py::object, py::object>>();
    if (!THPVariable_CheckExact(parameter.ptr())) return py::none();
    const at::Tensor& gradient = THPVariable_Unpack(parameter.ptr()).grad();
    if (!gradient.defined()) continue;
    if (gradient.key_set().has(c10::DispatchKey::Python)) return py::none();
    gradients.push_back(gradient);
    names.append(name);
  }
  std::vector<std::pair<double, double>> rows;
  {
    const py::gil_scoped_release without_gil;
    rows = norms_and_magnitudes(gradients);
  }
  py::list norms(rows.size());
  py::list magnitudes(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    norms[i] = rows[i].first;
    magnitudes[i] = rows[i].second;
  }
  return py::make_tuple(names, norms, magnitudes);
}

}  // namespace

void bind_gradients(py::module_& m) { m.def("measure_gradients", &measure_gradients, py::arg("parameters")); }

}  // namespace torchnan
