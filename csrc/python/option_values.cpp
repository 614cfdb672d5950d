#include "python/option_values.h"

#include <stdexcept>
#include <utility>

#include <torchnan/finding.h>

#include "detection/option_fields.h"
#include "python/call_python.h"
#include "python/convert.h"

namespace py = pybind11;

namespace torchnan {
namespace {

bool is_text(const py::handle& value) { return PyUnicode_Check(value.ptr()) != 0; }

bool is_instance(const py::handle& value, const char* module, const char* type) {
  return py::isinstance(value, py::module_::import(module).attr(type));
}

// read() sets a field from a value of Python. Returns false if the value does not have the type of the field.
bool read(const py::handle& value, bool& flag) {
  if (!PyBool_Check(value.ptr())) return false;
  flag = value.ptr() == Py_True;
  return true;
}

bool read(const py::handle& value, int64_t& number) {
  if (!PyLong_Check(value.ptr()) || PyBool_Check(value.ptr())) return false;
  int overflow = 0;
  number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  return overflow == 0;
}

template <typename Enum>
bool read_name(const py::handle& value, Enum& field) {
  const auto named = is_text(value) ? enum_from_name<Enum>(from_py_str(value)) : std::nullopt;
  if (named) field = *named;
  return named.has_value();
}

bool read(const py::handle& value, When& when) { return read_name(value, when); }

bool read(const py::handle& value, Action& action) {
  return is_text(value) ? read_name(value, action) : PyCallable_Check(value.ptr()) != 0;  // which is the callback
}

bool read(const py::handle& value, std::vector<std::string>& texts) {
  if (is_text(value) || !is_instance(value, "collections.abc", "Sequence")) return false;
  for (const py::handle text : value) {
    if (!is_text(text)) return false;
    texts.push_back(from_py_str(text));
  }
  return true;
}

// Whether the text can name a file of this system.
bool is_file_name(const py::str& text) {
  PyObject* const encoded = PyUnicode_EncodeFSDefault(text.ptr());
  if (encoded == nullptr) PyErr_Clear();
  Py_XDECREF(encoded);
  return encoded != nullptr;
}

bool read(const py::handle& value, std::string& path) {
  if (value.is_none()) return true;
  if (!is_text(value) && !is_instance(value, "pathlib", "Path")) return false;
  const py::str text(value);
  if (!is_file_name(text)) return false;
  path = from_py_str(text);
  return !path.empty();  // which means no path in C++
}

py::object to_value(bool flag) { return py::bool_(flag); }
py::object to_value(int64_t number) { return py::int_(number); }
py::object to_value(Action action) { return py::str(name_of(action)); }
py::object to_value(When when) { return py::str(name_of(when)); }
py::object to_value(const std::string& path) { return path.empty() ? py::object(py::none()) : to_py_str(path); }
py::object to_value(const std::vector<std::string>& texts) {
  py::list values;
  for (const std::string& text : texts) values.append(to_py_str(text));
  return py::tuple(values);
}

}  // namespace

py::list option_table() {
  py::list table;
  const Options defaults;
  for_each_option(defaults, [&](const OptionRow& row, const auto& field) {
    const Accepted words = accepted(row, field);
    py::dict entry;
    entry["name"] = row.name;
    entry["meaning"] = row.meaning;
    entry["default"] = to_value(field);
    entry["accepts"] = words.values;
    entry["accepts_text"] = words.texts;
    entry["names"] = to_value(words.names);
    table.append(entry);
  });
  return table;
}

bool accepts_option(const std::string& name, const py::object& value) {
  Options options;
  bool has_type = false;
  for_each_option(options, [&](const OptionRow& row, auto& field) {
    if (name == row.name) has_type = read(value, field);
  });
  return has_type && options.validate().empty();
}

std::vector<std::string> contradictions_of(const py::dict& values) { return contradictions(options_from(values)); }

Options options_from(const py::dict& values) {
  Options options;
  for_each_option(options, [&](const OptionRow& row, auto& field) {
    if (!read(values[row.name], field)) throw std::invalid_argument(std::string(row.name) + " has another type");
  });
  const py::object action = values["action"];
  if (!is_text(action)) {
    // Any thread may call it, and may drop the last reference.
    options.callback = [callable = reachable_from_threads(action)](const Finding& finding) {
      with_gil([&] { (*callable)(to_python(finding)); });
    };
  }
  return options;
}

}  // namespace torchnan
