// The options of a detection session as Python values: the table that Python reads, and the conversion of values.
#pragma once

#include <string>
#include <vector>

#include <pybind11/pybind11.h>

#include <torchnan/options.h>

namespace torchnan {

// Returns a dict for each option: its `name` and `meaning`, its `default`, in words what it `accepts` as a value and as
// text (`accepts_text`), and the `names` of an enumeration.
pybind11::list option_table();

// Whether an option of this name accepts the value.
bool accepts_option(const std::string& name, const pybind11::object& value);

// Returns one message for each contradiction among accepted values.
std::vector<std::string> contradictions_of(const pybind11::dict& values);

// Converts a value for every option, each accepted by its option. Throws std::invalid_argument for any other value.
Options options_from(const pybind11::dict& values);

}  // namespace torchnan
