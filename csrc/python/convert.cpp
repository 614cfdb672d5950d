#include "python/convert.h"

#include <pybind11/stl.h>

#include <stdexcept>
#include <type_traits>

#include "python/call_python.h"
#include "report/finding_fields.h"
#include "report/finding_log.h"

namespace py = pybind11;

namespace torchnan {
namespace {

py::object finding_class(const char* name) { return py::module_::import("torchnan.detection.finding").attr(name); }

py::object or_none(const std::string& text) { return text.empty() ? py::object(py::none()) : to_py_str(text); }

// The fields as keyword arguments: a visitor of for_each_field().
class KeywordArguments {
 public:
  template <typename Field>
  void operator()(const char* name, const Field& field) {
    keywords[name] = convert(field);
  }

  py::dict keywords;

 private:
  static py::object convert(const std::string& text) { return to_py_str(text); }
  static py::object convert(const OptionalText<const std::string>& text) { return or_none(text.value); }
  static py::object convert(const std::optional<std::string>& text) {
    return text ? py::object(to_py_str(*text)) : py::none();
  }
  static py::object convert(const Count<const int64_t>& count) { return py::int_(count.value); }
  static py::object convert(const std::vector<int64_t>& numbers) { return py::tuple(py::cast(numbers)); }
  static py::object convert(const Harm& harm) {
    KeywordArguments fields;
    for_each_field(harm, fields);
    fields.keywords["text"] = describe(harm);
    return finding_class("Harm")(**fields.keywords);
  }
  static py::object convert(const std::optional<CompiledRegion>& compiled) {
    return compiled ? make("CompiledRegion", *compiled) : py::none();
  }
  static py::object convert(const Frame& frame) { return make("Frame", frame); }
  static py::object convert(const InputSummary& input) { return make("Input", input); }
  static py::object convert(const LineageStep& step) { return make("LineageStep", step); }

  // Fills a list first: a tuple that another thread has seen through gc.get_objects() cannot be filled any more.
  template <typename Part>
  static py::object convert(const std::vector<Part>& parts) {
    py::list made;
    for (const Part& part : parts) made.append(convert(part));
    return py::tuple(made);
  }

  template <typename Scalar>
  static py::object convert(const Scalar& value) {
    if constexpr (std::is_enum_v<Scalar>) {
      return py::str(name_of(value));
    } else {
      return py::cast(value);
    }
  }

  template <typename Part>
  static py::object make(const char* class_name, const Part& part) {
    KeywordArguments fields;
    for_each_field(part, fields);
    return finding_class(class_name)(**fields.keywords);
  }
};

py::bytes encoded(const py::handle& text, const char* how) {
  PyObject* bytes = PyUnicode_AsEncodedString(text.ptr(), "utf-8", how);
  if (bytes == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::bytes>(bytes);
}

}  // namespace

std::string from_py_str(const py::handle& text) {
  if (!PyUnicode_Check(text.ptr())) throw py::type_error("expected a str");
  try {
    return encoded(text, "surrogateescape");
  } catch (const py::error_already_set&) {  // a surrogate that does not represent a byte
    return encoded(text, "surrogatepass");
  }
}

py::str to_py_str(const std::string& text) {
  PyObject* made = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
  if (made == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(made);
}

std::string error_message(const py::error_already_set& error) {
  const std::string_view what = error.what();
  return std::string(what.substr(0, what.find("\n\nAt:\n")));
}

int bits_of(NonfiniteKinds kinds) {
  return (kinds.nan() ? 1 : 0) | (kinds.posinf() ? 2 : 0) | (kinds.neginf() ? 4 : 0);
}

NonfiniteKinds kinds_from(int bits) {
  NonfiniteKinds kinds;
  if ((bits & 1) != 0) kinds |= NonfiniteKinds::only_nan();
  if ((bits & 2) != 0) kinds |= NonfiniteKinds::only_posinf();
  if ((bits & 4) != 0) kinds |= NonfiniteKinds::only_neginf();
  return kinds;
}

py::object to_python(const Finding& finding) {
  KeywordArguments fields;
  for_each_field(finding, fields);
  fields.keywords["schema"] = Finding::kSchemaVersion;
  fields.keywords["_text"] = to_text(finding);
  fields.keywords["_json"] = to_json(finding);
  fields.keywords["_operation"] = to_py_str(operation_of(finding));
  fields.keywords["_told_apart_by"] = to_py_str(told_apart_by(finding));
  return finding_class("Finding")(**fields.keywords);
}

py::dict to_python(const Stats& stats) {
  py::dict counts;
  for_each_count(stats, [&](const char* name, int64_t count) { counts[name] = count; });
  counts["skipped"] = stats.skipped;
  return counts;
}

py::object to_python(const Headroom& h) {
  const py::object module = h.module ? py::object(to_py_str(*h.module)) : py::none();
  return py::module_::import("torchnan.detection.headroom")
      .attr("Headroom")(module, to_py_str(h.op), h.dtype, h.absmax, h.exact, h.bound, h.limit);
}

}  // namespace torchnan
