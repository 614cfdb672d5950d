// Conversion of findings and text between C++ and Python.
#pragma once

#include <stdexcept>
#include <string>

#include <pybind11/pybind11.h>

#include <torchnan/finding.h>
#include <torchnan/headroom.h>
#include <torchnan/stats.h>

#include "report/enum_names.h"
#include "check/scan/nonfinite_kinds.h"

namespace torchnan {

// Returns a torchnan.Finding.
pybind11::object to_python(const Finding& finding);
pybind11::dict to_python(const Stats& stats);
// Returns a torchnan.Headroom.
pybind11::object to_python(const Headroom& headroom);

// Returns the value of an enumeration of <torchnan/finding.h>. Throws std::invalid_argument for an unknown name.
template <typename Enum>
Enum parse_enum(const std::string& name) {
  if (const auto value = enum_from_name<Enum>(name)) return *value;
  throw std::invalid_argument("unknown name: " + name);
}

// Kinds are an int in Python: 1 for NaN, 2 for +Inf, 4 for -Inf, or'ed.
int bits_of(NonfiniteKinds kinds);
NonfiniteKinds kinds_from(int bits);

// Text of user code may be invalid Unicode in Python (with surrogates, as in file names that are not UTF-8), and
// invalid UTF-8 in the core. A round trip through both returns the same text.
std::string from_py_str(const pybind11::handle& text);
pybind11::str to_py_str(const std::string& text);

// Returns the message of an error, without its traceback.
std::string error_message(const pybind11::error_already_set& error);

}  // namespace torchnan
