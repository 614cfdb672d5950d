// Text that is safe to show or to store: names in a finding come from the program and may hold anything.
#pragma once

#include <string>
#include <string_view>

#include <torchnan/export.h>

namespace torchnan {

// For a terminal, in one line: control and format characters (bidirectional ones, those without width), line
// separators, floods of combining marks and broken UTF-8 are written as escapes; cut at `limit` bytes with "...".
TORCHNAN_API std::string printable(std::string_view text, size_t limit = 400);

// For JSON: the text itself, with broken UTF-8 written as escapes; cut at `limit` bytes with "...".
TORCHNAN_API std::string to_valid_utf8(std::string_view text, size_t limit = 1000);

// A file name as short as it is clear: from the package on for installed code, relative to the working directory for
// the program's own.
std::string short_path(const std::string& path);

}  // namespace torchnan
