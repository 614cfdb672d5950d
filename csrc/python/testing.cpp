// torchnan._testing: functions for tests only. Linked to the same library as torchnan._C, so it shares its state; built
// on request and never installed.
#include <torch/csrc/utils/pybind.h>

#include <optional>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "check/bounds/bound_audit.h"
#include "check/bounds/bound_cache.h"
#include "check/bounds/rules.h"
#include "intercept/proved_step.h"
#include "base/work_counters.h"
#include "python/convert.h"
#include "python/lock_discipline.h"
#include "python/option_values.h"

namespace py = pybind11;
using namespace torchnan;

PYBIND11_MODULE(_testing, m) {
  m.def("operators_with_rules", &operators_with_rules);
  m.def("enable_bound_audit", [](bool enabled) { bound_audit().enable(enabled); });
  m.def("drain_bound_audit", [] {
    py::list samples;
    for (const BoundSample& s : bound_audit().drain()) {
      samples.append(py::make_tuple(s.op, s.output, s.bound, s.max_abs, s.limit, s.nonnegative, s.min_value));
    }
    return samples;
  });
  m.def("known_bound", [](const at::Tensor& tensor) -> std::optional<double> {
    const BoundCache::Entry entry = bound_cache().find(tensor);
    return entry.state == BoundCache::State::kFinite ? std::optional(entry.bound.max_abs) : std::nullopt;
  });
  m.def("falsify_rule", [](const std::string& op, double factor) {
    const RuleOfOperator found = rule_of(op);
    if (found.rule == nullptr) throw py::value_error(op + " has no rule");
    found.rule->falsify_for_test(factor);
  });
  m.def("falsify_proved_steps", &ProvedStep::falsify_for_test);
  m.def("is_rule_withdrawn", [](const std::string& op) { return rule_of(op).rule->is_withdrawn(); });
  m.def("check_lock_discipline", &check_lock_discipline);
  m.def("gil_waits_under_lock", &gil_waits_under_lock);
  m.def("wait_for_gil_under_lock", &wait_for_gil_under_lock);
  m.def("work_counters", [] {
    const WorkCounters& counters = work_counters();
    return py::make_tuple(counters.remembered.load(), counters.resolved.load(), counters.stats.load(),
                          counters.attributed.load());
  });
  m.def("validate_options", [](const py::dict& keywords) { return options_from(keywords).validate(); });
}
