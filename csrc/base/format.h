// Formats text in the syntax of Python's str.format(), with the {fmt} that PyTorch brings. Its engine, which takes a
// second to compile, is compiled once, in format.cpp.
#pragma once

#include <string>
#include <string_view>

#include <fmt/base.h>

#include <torchnan/export.h>

namespace torchnan {

TORCHNAN_API std::string format_arguments(fmt::string_view text, fmt::format_args arguments);

// Returns the text with each {} replaced; it is checked against the types of the values when it is compiled.
template <typename... Values>
std::string format_text(fmt::format_string<Values...> text, Values&&... values) {
  return format_arguments(text, fmt::make_format_args(values...));
}

// Returns the elements of a range with a separator between them. Elements are formatted as by {}.
template <typename Range>
std::string join_text(const Range& elements, std::string_view separator) {
  std::string text;
  for (auto element = elements.begin(); element != elements.end(); ++element) {
    if (element != elements.begin()) text += separator;
    text += format_text("{}", *element);
  }
  return text;
}

}  // namespace torchnan
