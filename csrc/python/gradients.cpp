#include "python/bindings.h"

#include <cmath>
#include <utility>
#include <vector>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/python_variable.h>

#include "base/dispatch_key.h"
#include "check/scan/measure.h"

namespace py = pybind11;

namespace torchnan {
namespace {

// The larger of two magnitudes, or NaN if one of them is.
double larger(double a, double b) { return a > b || std::isnan(a) ? a : b; }

py::object measure_gradients(const py::list& parameters, const py::list& buffers) {
  std::vector<at::Tensor> tensors;  // gradients, then buffers
  std::vector<py::handle> names;    // the lists keep them
  for (const py::handle named : parameters) {
    const py::tuple pair = py::reinterpret_borrow<py::tuple>(named);
    const py::handle parameter = pair[1];
    if (!THPVariable_CheckExact(parameter.ptr())) return py::none();
    const at::Tensor& gradient = THPVariable_Unpack(parameter.ptr()).grad();
    if (!gradient.defined()) continue;
    if (gradient.key_set().has(c10::DispatchKey::Python)) return py::none();
    tensors.push_back(gradient);
    names.push_back(pair[0]);
  }
  const size_t gradients = tensors.size();
  for (const py::handle named : buffers) {
    const py::tuple pair = py::reinterpret_borrow<py::tuple>(named);
    const py::handle buffer = pair[1];
    if (!THPVariable_CheckExact(buffer.ptr())) return py::none();
    tensors.push_back(THPVariable_Unpack(buffer.ptr()));
    names.push_back(pair[0]);
  }
  std::vector<std::pair<double, double>> rows;
  {
    const py::gil_scoped_release without_gil;
    rows = norms_and_magnitudes(tensors);
  }
  py::list norms(gradients);
  double max_abs = 0;
  py::list nonfinite;
  py::list nonfinite_buffers;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto [norm, magnitude] = rows[i];
    if (!std::isfinite(magnitude)) (i < gradients ? nonfinite : nonfinite_buffers).append(names[i]);
    if (i >= gradients) continue;
    norms[i] = norm;
    max_abs = larger(max_abs, magnitude);
  }
  return py::make_tuple(norms, max_abs, py::tuple(nonfinite), py::tuple(nonfinite_buffers));
}

c10::Scalar value_of(const at::Tensor& loss) {
  const py::gil_scoped_release without_gil;  // it may wait for a device
  const c10::impl::ExcludeDispatchKeyGuard no_detection(kInterceptorKey);
  return loss.item();
}

py::object loss_values(const py::list& losses) {
  py::list values;
  for (const py::handle loss : losses) {
    if (!THPVariable_CheckExact(loss.ptr())) return py::none();
    const c10::Scalar value = value_of(THPVariable_Unpack(loss.ptr()));
    if (value.isFloatingPoint()) {
      values.append(value.toDouble());
    } else if (value.isComplex()) {
      const auto number = value.toComplexDouble();
      values.append(py::reinterpret_steal<py::object>(PyComplex_FromDoubles(number.real(), number.imag())));
    } else {
      return py::none();
    }
  }
  return py::tuple(values);
}

}  // namespace

void bind_gradients(py::module_& m) {
  m.def("measure_gradients", &measure_gradients, py::arg("parameters"), py::arg("buffers") = py::list());
  m.def("loss_values", &loss_values, py::arg("losses"));
}

}  // namespace torchnan
