// Text that is safe to show: names in a finding come from the program and may hold anything.
#pragma once

#include <string>
#include <string_view>

namespace torchnan {

// `text` with control characters, bidirectional controls and broken UTF-8 written as escapes, cut at `limit` bytes
// with a mark.
std::string printable(std::string_view text, size_t limit = 400);

// A file name as short as it is clear: from the package on for installed code, relative to the working directory for
// the program's own.
std::string short_path(const std::string& path);

}  // namespace torchnan
