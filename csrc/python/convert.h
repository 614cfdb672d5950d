// Findings and options between C++ and Python.
#pragma once

#include <string>

#include <pybind11/pybind11.h>

#include <torchnan/finding.h>
#include <torchnan/options.h>
#include <torchnan/stats.h>

namespace torchnan {

// A torchnan.Finding.
pybind11::object to_python(const Finding& finding);
pybind11::dict to_python(const Stats& stats);

Phase phase_from(const std::string& name);
HarmKind harm_kind_from(const std::string& name);

// From the keywords of torchnan.detect(), whose types Python has checked.
Options options_from(const pybind11::dict& keywords);

}  // namespace torchnan
