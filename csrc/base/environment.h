// The environment variables that the core reads.
#pragma once

#include <cstdint>
#include <optional>

#include <torchnan/export.h>

namespace torchnan {

// Whether TORCHNAN=0 disables detection, even where user code enables it. Read once, at the first call.
TORCHNAN_API bool is_disabled() noexcept;

// Returns RANK, which launchers set for each process; nothing if it is unset or not a number.
TORCHNAN_API std::optional<int64_t> rank_from_environment() noexcept;

// Whether CUDA_LAUNCH_BLOCKING asks for kernels that run one by one, so that a failure is known where it happens.
TORCHNAN_API bool is_launch_blocking() noexcept;

}  // namespace torchnan
