// Finds a source line among several.
#pragma once

#include <vector>

#include <torchnan/finding.h>

namespace torchnan {

// Returns the innermost frame outside of installed packages; null if there is none.
const Frame* own_frame(const std::vector<Frame>& frames);

// Returns the first one; one without a file if there is none.
inline Frame innermost(const std::vector<Frame>& frames) { return frames.empty() ? Frame{} : frames.front(); }

}  // namespace torchnan
