// Findings and options between C++ and Python.
#pragma once

#include <string>

#include <pybind11/pybind11.h>

#include <torchnan/finding.h>
#include <torchnan/headroom.h>
#include <torchnan/options.h>
#include <torchnan/stats.h>

namespace torchnan {

// A torchnan.Finding.
pybind11::object to_python(const Finding& finding);
pybind11::dict to_python(const Stats& stats);
// A torchnan.Headroom.
pybind11::object to_python(const Headroom& headroom);

Phase phase_from(const std::string& name);
HarmKind harm_kind_from(const std::string& name);

// From the keywords of torchnan.detect(), whose types Python has checked. Throws std::invalid_argument for a word that
// is no action or no time.
Options options_from(const pybind11::dict& keywords);

// Text of the program's. What Python has of it may be no Unicode (surrogates, as in names of files that are no UTF-8);
// what the core has of it may be no UTF-8. It comes back as it went.
std::string from_py_str(const pybind11::handle& text);
pybind11::str to_py_str(const std::string& text);

// What an error says, without its traceback.
std::string told(const pybind11::error_already_set& error);

}  // namespace torchnan
