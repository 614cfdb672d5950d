#include <torch/csrc/utils/pybind.h>  // must be first: converts tensors to and from Python

#include "python/bindings.h"

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include "base/dispatch_key.h"
#include "check/scan/measure.h"
#include "device/undoable_step.h"

namespace py = pybind11;

namespace torchnan {
namespace {

// The larger of two magnitudes, or NaN if one of them is.
double larger(double a, double b) { return a > b || std::isnan(a) ? a : b; }

using Rows = std::vector<std::pair<double, double>>;  // norm and magnitude of each tensor

// The gradients of parameters, then buffers.
struct Measured {
  std::vector<at::Tensor> tensors;
  std::vector<py::object> names;
  size_t gradients = 0;

  // Returns false if a tensor may hold its values elsewhere.
  bool add(const py::list& parameters, const py::list& buffers) {
    for (const py::handle named : parameters) {
      const py::tuple pair = py::reinterpret_borrow<py::tuple>(named);
      const py::handle parameter = pair[1];
      if (!THPVariable_CheckExact(parameter.ptr())) return false;
      const at::Tensor& gradient = THPVariable_Unpack(parameter.ptr()).grad();
      if (!gradient.defined()) continue;
      if (gradient.key_set().has(c10::DispatchKey::Python)) return false;
      tensors.push_back(gradient);
      names.push_back(pair[0]);
    }
    gradients = tensors.size();
    for (const py::handle named : buffers) {
      const py::tuple pair = py::reinterpret_borrow<py::tuple>(named);
      const py::handle buffer = pair[1];
      if (!THPVariable_CheckExact(buffer.ptr())) return false;
      tensors.push_back(THPVariable_Unpack(buffer.ptr()));
      names.push_back(pair[0]);
    }
    return true;
  }

  py::tuple describe(const Rows& rows) const {
    py::list norms(gradients);
    double max_abs = 0;
    py::list nonfinite;
    py::list nonfinite_buffers;
    for (size_t i = 0; i < names.size(); ++i) {
      const auto [norm, magnitude] = rows[i];
      if (!std::isfinite(magnitude)) (i < gradients ? nonfinite : nonfinite_buffers).append(names[i]);
      if (i >= gradients) continue;
      norms[i] = norm;
      max_abs = larger(max_abs, magnitude);
    }
    return py::make_tuple(norms, max_abs, py::tuple(nonfinite), py::tuple(nonfinite_buffers));
  }
};

py::object measure_gradients(const py::list& parameters, const py::list& buffers) {
  Measured measured;
  if (!measured.add(parameters, buffers)) return py::none();
  Rows rows;
  {
    const py::gil_scoped_release without_gil;
    rows = norms_and_magnitudes(measured.tensors);
  }
  return measured.describe(rows);
}

c10::Scalar value_of(const at::Tensor& loss) {
  const py::gil_scoped_release without_gil;  // it may wait for a device
  const c10::impl::ExcludeDispatchKeyGuard no_detection(kInterceptorKey);
  return loss.item();
}

py::object to_number(const c10::Scalar& value) {
  if (!value.isComplex()) return py::float_(value.toDouble());
  const auto number = value.toComplexDouble();
  return py::reinterpret_steal<py::object>(PyComplex_FromDoubles(number.real(), number.imag()));
}

py::object loss_values(const py::list& losses) {
  py::list values;
  for (const py::handle loss : losses) {
    if (!THPVariable_CheckExact(loss.ptr())) return py::none();
    const c10::Scalar value = value_of(THPVariable_Unpack(loss.ptr()));
    if (!value.isFloatingPoint() && !value.isComplex()) return py::none();
    values.append(to_number(value));
  }
  return py::tuple(values);
}

// The measurement of a step on a device that can undo it. The host need not wait for it.
class StepMeasurement {
 public:
  static std::shared_ptr<StepMeasurement> begin(const py::list& parameters, const py::list& buffers,
                                                const py::list& losses) {
    if (!is_first_on_such_device(parameters)) return nullptr;
    auto step = std::make_shared<StepMeasurement>();
    Measured& measured = step->measured_;
    if (!measured.add(parameters, buffers) || measured.gradients == 0) return nullptr;
    std::vector<at::Tensor> values;
    for (const py::handle loss : losses) {
      if (!THPVariable_CheckExact(loss.ptr())) return nullptr;
      values.push_back(THPVariable_Unpack(loss.ptr()));
    }
    std::vector<at::Tensor> all = measured.tensors;
    all.insert(all.end(), values.begin(), values.end());
    for (const at::Tensor& tensor : all) {
      const bool is_float = tensor.is_floating_point() || tensor.is_complex();
      if (tensor.device() != all[0].device() || tensor.layout() != c10::kStrided || !is_float) return nullptr;
    }
    {
      const py::gil_scoped_release without_gil;
      step->measurement_ = std::make_shared<const DeviceMeasurement>(all, values);
    }
    measured.tensors.clear();
    return step;
  }

  py::tuple stats() const {
    Rows rows;
    {
      const py::gil_scoped_release without_gil;
      rows = measurement_->rows();
    }
    return measured_.describe(rows);
  }

  py::tuple loss_values() const {
    py::list values;
    for (const at::Tensor& value : measurement_->numbers()) values.append(to_number(value_of(value)));
    return py::tuple(values);
  }

  std::unique_ptr<UndoableStep> begin_step(const std::vector<at::Tensor>& written,
                                           const std::vector<UndoableStep::Copied>& copied, int64_t max_bytes) const {
    return UndoableStep::begin(measurement_, written, copied, max_bytes);
  }

 private:
  // Whether the first gradient is on a device that can undo a step: most often all are, or none.
  static bool is_first_on_such_device(const py::list& parameters) {
    for (const py::handle named : parameters) {
      const py::handle parameter = py::reinterpret_borrow<py::tuple>(named)[1];
      if (!THPVariable_CheckExact(parameter.ptr())) return false;
      const at::Tensor& gradient = THPVariable_Unpack(parameter.ptr()).grad();
      if (gradient.defined()) return UndoableStep::is_possible_on(gradient);
    }
    return false;
  }

  Measured measured_;
  std::shared_ptr<const DeviceMeasurement> measurement_;
};

}  // namespace

void bind_gradients(py::module_& m) {
  m.def("measure_gradients", &measure_gradients, py::arg("parameters"), py::arg("buffers") = py::list());
  m.def("loss_values", &loss_values, py::arg("losses"));
  py::class_<StepMeasurement, std::shared_ptr<StepMeasurement>>(m, "StepMeasurement")
      .def("stats", &StepMeasurement::stats)
      .def("loss_values", &StepMeasurement::loss_values)
      .def("begin_step", &StepMeasurement::begin_step, py::arg("written"), py::arg("copied"), py::arg("max_bytes"),
           py::call_guard<py::gil_scoped_release>());
  m.def("begin_measuring", &StepMeasurement::begin, py::arg("parameters"), py::arg("buffers"), py::arg("losses"));
  py::class_<UndoableStep>(m, "UndoableStep")
      .def("end", &UndoableStep::end)
      .def("undo_on_host", &UndoableStep::undo_on_host);
}

}  // namespace torchnan
