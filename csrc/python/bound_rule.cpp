#include "python/bindings.h"

#include <torch/csrc/utils/pybind.h>

#include <stdexcept>
#include <string>
#include <utility>

#include <pybind11/stl.h>

#include <torchnan/bounds.h>

#include "check/bounds/operand.h"
#include "python/call_python.h"
#include "python/convert.h"

namespace py = pybind11;

namespace torchnan {
namespace {

// Converts an argument for a rule in Python.
py::object argument(const RuleArguments& arguments, size_t i, const py::object& bound_class) {
  const Operand& operand = *arguments.operand(i);
  const bool is_list = operand.kind == Operand::Kind::kIntegers || operand.kind == Operand::Kind::kValues;
  if (operand.kind == Operand::Kind::kNumber) return py::float_(operand.number);
  if (operand.kind == Operand::Kind::kInteger) return py::int_(operand.integer);
  if (is_list && !arguments.integers(i).empty()) return py::cast(c10::IntArrayRef(arguments.integers(i)).vec());
  if (!is_list && operand.kind != Operand::Kind::kTensor) return py::none();
  const Bound bound = arguments.bound_of_all(i);
  const double max_abs = bound.masked ? RuleArguments::kUnknown : bound.max_abs;
  return bound_class(max_abs, bound.nonnegative, py::tuple(py::cast(arguments.sizes(i).vec())));
}

double bound_from(const py::handle& answer) {
  const double max_abs = answer.cast<double>();
  if (!(max_abs >= 0)) throw std::invalid_argument("it returned " + std::to_string(max_abs) + ", and no |x| is that");
  return max_abs;
}

void read_bounds(const py::object& answer, std::span<Bound> results) {
  if (!py::isinstance<py::sequence>(answer)) {
    if (!answer.is_none()) results[0].max_abs = bound_from(answer);
    return;
  }
  size_t index = 0;
  for (const py::handle one : answer) {
    if (index < results.size() && !one.is_none()) results[index].max_abs = bound_from(one);
    ++index;
  }
}

BoundRule rule_in_python(const py::function& rule, const py::object& bound_class) {
  // Never destroyed: operators, and so the rule, may run until the process ends.
  auto* held = new std::pair<py::function, py::object>(rule, bound_class);
  return [held](const RuleArguments& arguments, std::span<Bound> results) {
    with_gil([&] {
      py::list values;  // not a tuple: it cannot be filled once another thread refers to it
      for (size_t i = 0; i < arguments.size(); ++i) values.append(argument(arguments, i, held->second));
      read_bounds(held->first(*values), results);
    });
  };
}

}  // namespace

void bind_bound_rules(py::module_& m) {
  m.def("register_bound", [](const py::str& op, const py::function& rule, const py::object& bound_class) {
    register_bound_rule(from_py_str(op), rule_in_python(rule, bound_class));
  });
}

}  // namespace torchnan
