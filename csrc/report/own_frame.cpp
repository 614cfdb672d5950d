#include "report/own_frame.h"

#include <algorithm>

namespace torchnan {
namespace {

bool is_installed(const std::string& file) {
  return file.find("/site-packages/") != std::string::npos || file.find("/dist-packages/") != std::string::npos;
}

}  // namespace

const Frame* own_frame(const std::vector<Frame>& frames) {
  const auto found = std::find_if(frames.begin(), frames.end(), [](const Frame& f) { return !is_installed(f.file); });
  return found == frames.end() ? nullptr : &*found;
}

}  // namespace torchnan
