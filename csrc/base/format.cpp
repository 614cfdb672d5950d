#define FMT_HEADER_ONLY  // no library of PyTorch exports it

#include "base/format.h"

#include <fmt/format.h>

namespace torchnan {

std::string format_arguments(fmt::string_view text, fmt::format_args arguments) {
  return fmt::vformat(text, arguments);
}

}  // namespace torchnan
