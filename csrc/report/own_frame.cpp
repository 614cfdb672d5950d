#include "report/own_frame.h"

#include <algorithm>

namespace torchnan {
const Frame* own_frame(const std::vector<Frame>& frames) {
  const auto found = std::find_if(frames.begin(), frames.end(), [](const Frame& f) { return !f.installed; });
  return found == frames.end() ? nullptr : &*found;
}

}  // namespace torchnan
