// What the core itself reads from the environment.
#pragma once

#include <cstdint>
#include <optional>

#include <torchnan/export.h>

namespace torchnan {

// TORCHNAN=0: nothing is watched, whatever the program asks for. Read once, when it is first asked.
TORCHNAN_API bool is_disabled() noexcept;

// RANK, as launchers set it for each process; nothing if it is not set, or is not a number.
TORCHNAN_API std::optional<int64_t> rank_from_environment() noexcept;

}  // namespace torchnan
