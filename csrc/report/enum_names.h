// Reads the names of enumerations.
#pragma once

#include <optional>
#include <string_view>

#include <torchnan/finding.h>

namespace torchnan {

// Returns the value with this name; nothing if there is none.
template <typename Enum>
std::optional<Enum> enum_from_name(std::string_view name) {
  for (int i = 0; *name_of(static_cast<Enum>(i)) != '\0'; ++i) {
    if (name == name_of(static_cast<Enum>(i))) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace torchnan
