// Makes text safe to print or to store: names in a finding come from user code and may contain anything.
#pragma once

#include <string>
#include <string_view>

#include <torchnan/export.h>

namespace torchnan {

// Returns one line for a terminal. Control and format characters (bidirectional ones, those without width), line
// separators, long runs of combining marks and broken UTF-8 become escapes. Cut at `limit` bytes with "...".
TORCHNAN_API std::string printable(std::string_view text, size_t limit = 400);

// Returns the text for JSON, with escapes for broken UTF-8. Cut at `limit` bytes with "...".
TORCHNAN_API std::string to_valid_utf8(std::string_view text, size_t limit = 1000);

// Shortens a file name: to the part from the package on for installed code, relative to the working directory for other
// files.
std::string short_path(const std::string& path);

}  // namespace torchnan
