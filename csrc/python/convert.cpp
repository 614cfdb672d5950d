#include "python/convert.h"

#include <pybind11/stl.h>

#include <stdexcept>

#include "python/call_python.h"
#include "text/printable.h"

namespace py = pybind11;

namespace torchnan {
namespace {

py::object finding_class(const char* name) { return py::module_::import("torchnan.detection.finding").attr(name); }

py::object or_none(const std::string& text) { return text.empty() ? py::object(py::none()) : to_py_str(text); }

py::object to_python(const Frame& frame) {
  return finding_class("Frame")(to_py_str(frame.file), frame.line, to_py_str(frame.function));
}

py::object to_python(const InputSummary& input) {
  const Tally& t = input.tally;
  return finding_class("Input")(input.name, input.dtype, py::tuple(py::cast(input.shape)), t.min, t.max, t.absmax,
                                t.nan, t.posinf, t.neginf, input.overwritten, or_none(input.constant));
}

py::object to_python(const LineageStep& step) { return finding_class("Step")(step.op, or_none(step.file), step.line); }

py::object to_python(const Harm& harm) {
  return finding_class("Harm")(name_of(harm.kind), or_none(harm.name), or_none(harm.file), harm.line, describe(harm));
}

// By way of a list: a tuple that another thread has seen through gc.get_objects() cannot be filled any more.
template <typename T>
py::tuple tuple_of(const std::vector<T>& items) {
  py::list made;
  for (const T& item : items) made.append(to_python(item));
  return py::tuple(made);
}

py::bytes encoded(const py::handle& text, const char* how) {
  PyObject* bytes = PyUnicode_AsEncodedString(text.ptr(), "utf-8", how);
  if (bytes == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::bytes>(bytes);
}

Action action_from(const std::string& name) {
  if (name == "raise") return Action::kRaise;
  if (name == "warn") return Action::kWarn;
  if (name == "log") return Action::kLog;
  throw std::invalid_argument("no such action: " + printable(name));
}

When when_from(const std::string& name) {
  if (name == "harm") return When::kHarm;
  if (name == "origin") return When::kOrigin;
  throw std::invalid_argument("no such time: " + printable(name));
}

}  // namespace

std::string from_py_str(const py::handle& text) {
  if (!PyUnicode_Check(text.ptr())) throw py::type_error("not a text");
  try {
    return encoded(text, "surrogateescape");
  } catch (const py::error_already_set&) {  // a surrogate that stands for no byte
    return encoded(text, "surrogatepass");
  }
}

py::str to_py_str(const std::string& text) {
  PyObject* made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(made);
}

std::string told(const py::error_already_set& error) {
  const std::string_view what = error.what();
  return std::string(what.substr(0, what.find("\n\nAt:\n")));
}

py::object to_python(const Finding& f) {
  py::dict fields;
  fields["schema"] = Finding::kSchemaVersion;
  fields["level"] = name_of(f.level);
  fields["kind"] = name_of(f.kind);
  fields["origin"] = name_of(f.origin);
  fields["phase"] = name_of(f.phase);
  fields["op"] = f.op;
  fields["overload"] = f.overload;
  fields["output"] = f.output;
  fields["node"] = or_none(f.node);
  fields["module"] = f.module ? py::object(to_py_str(*f.module)) : py::none();
  fields["name"] = or_none(f.name);
  fields["stack"] = tuple_of(f.stack);
  fields["step"] = f.step;
  fields["rank"] = f.rank;
  fields["thread"] = f.thread;
  fields["device"] = f.device;
  fields["dtype"] = f.dtype;
  fields["shape"] = py::tuple(py::cast(f.shape));
  fields["strides"] = py::tuple(py::cast(f.strides));
  fields["nan"] = f.nan;
  fields["posinf"] = f.posinf;
  fields["neginf"] = f.neginf;
  fields["first_index"] = py::tuple(py::cast(f.first_index));
  fields["inputs"] = tuple_of(f.inputs);
  fields["lineage"] = tuple_of(f.lineage);
  fields["lineage_omitted"] = f.lineage_omitted;
  fields["harm"] = to_python(f.harm);
  fields["hint"] = or_none(f.hint);
  fields["repeats"] = f.repeats;
  fields["_text"] = to_text(f);
  fields["_json"] = to_json(f);
  return finding_class("Finding")(**fields);
}

py::dict to_python(const Stats& stats) {
  py::dict d;
  d["ops"] = stats.ops;
  d["checked"] = stats.checked;
  d["proved"] = stats.proved;
  d["bytes"] = stats.bytes;
  d["bytes_rescanned"] = stats.bytes_rescanned;
  d["bytes_scanned_unknown"] = stats.bytes_scanned_unknown;
  d["bytes_proved"] = stats.bytes_proved;
  d["nonfinite"] = stats.nonfinite;
  d["findings"] = stats.findings;
  d["repeats"] = stats.repeats;
  d["dropped"] = stats.dropped;
  d["unlogged"] = stats.log_failures;
  d["call_sites"] = stats.call_sites;
  d["headroom_dropped"] = stats.headroom_dropped;
  d["internal_errors"] = stats.internal_errors;
  d["skipped"] = stats.skipped;
  return d;
}

py::object to_python(const Headroom& h) {
  const py::object module = h.module ? py::object(to_py_str(*h.module)) : py::none();
  return py::module_::import("torchnan.detection.headroom")
      .attr("Headroom")(module, to_py_str(h.op), h.dtype, h.absmax, h.exact, h.bound, h.limit);
}

Phase phase_from(const std::string& name) {
  for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kOptimizer}) {
    if (name == name_of(phase)) return phase;
  }
  throw std::invalid_argument("no such phase: " + name);
}

HarmKind harm_kind_from(const std::string& name) {
  for (const HarmKind kind : {HarmKind::kBackward, HarmKind::kGradient, HarmKind::kParameter, HarmKind::kOptimizerState,
                              HarmKind::kRead, HarmKind::kGuard}) {
    if (name == name_of(kind)) return kind;
  }
  throw std::invalid_argument("no such harm: " + name);
}

Options options_from(const py::dict& keywords) {
  Options options;
  const py::object action = keywords["action"];
  if (py::isinstance<py::str>(action)) {
    options.action = action_from(from_py_str(action));
  } else {
    // Called, and let go of, by any thread.
    options.callback = [callable = reachable_from_threads(action)](const Finding& finding) {
      with_gil([&] { (*callable)(to_python(finding)); });
    };
  }
  options.check_nan = keywords["check_nan"].cast<bool>();
  options.check_inf = keywords["check_inf"].cast<bool>();
  options.when = when_from(from_py_str(keywords["when"]));
  options.backward = keywords["backward"].cast<bool>();
  options.stacks = keywords["stacks"].cast<bool>();
  for (const py::handle name : keywords["skip_ops"]) options.skip_ops.push_back(from_py_str(name));
  options.exact = keywords["exact"].cast<bool>();
  options.sample = keywords["sample"].cast<int64_t>();
  options.headroom = keywords["headroom"].cast<bool>();
  options.max_findings = keywords["max_findings"].cast<int64_t>();
  if (!keywords["log"].is_none()) options.log = from_py_str(keywords["log"]);
  return options;
}

}  // namespace torchnan
