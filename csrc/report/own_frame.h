// Finds the source line in user code among several.
#pragma once

#include <vector>

#include <torchnan/finding.h>

namespace torchnan {

// Returns the innermost frame outside of installed packages; null if there is none.
const Frame* own_frame(const std::vector<Frame>& frames);

}  // namespace torchnan
