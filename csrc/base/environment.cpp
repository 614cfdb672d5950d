#include "base/environment.h"

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace torchnan {

bool is_disabled() noexcept {
  static const bool off = [] {
    const char* value = std::getenv("TORCHNAN");
    return value != nullptr && std::string_view(value) == "0";
  }();
  return off;
}

bool is_launch_blocking() noexcept {
  const char* value = std::getenv("CUDA_LAUNCH_BLOCKING");
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

std::optional<int64_t> rank_from_environment() noexcept {
  const char* value = std::getenv("RANK");
  if (value == nullptr) return std::nullopt;
  const std::string_view text = value;
  int64_t rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  const bool is_whole = error == std::errc() && end == text.data() + text.size();
  return is_whole && rank >= 0 ? std::optional(rank) : std::nullopt;
}

}  // namespace torchnan
