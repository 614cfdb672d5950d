#include "check/bounds/kernels.h"

#include <array>
#include <atomic>
#include <cstdint>

#include <ATen/detail/CUDAHooksInterface.h>

namespace torchnan {
namespace {

// One more than the kernels that were declared for a type of device; 0 for none. Initialized before any code runs,
// because libraries declare theirs while they are loaded.
constinit std::array<std::atomic<uint8_t>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> declared{};

Kernels undeclared(c10::DeviceType type) noexcept {
  const bool is_nvidia = type == c10::kCUDA && !at::detail::getCUDAHooks().hasROCM();
  return is_nvidia ? Kernels::kNvidia : Kernels::kUnknown;
}

}  // namespace

Kernels kernels_of(c10::DeviceType type) noexcept {
  if (type == c10::kCPU) return Kernels::kHost;
  const uint8_t found = declared[static_cast<size_t>(type)].load(std::memory_order_relaxed);
  return found == 0 ? undeclared(type) : static_cast<Kernels>(found - 1);
}

void declare_kernels(c10::DeviceType type, Kernels kernels) noexcept {
  declared[static_cast<size_t>(type)].store(static_cast<uint8_t>(static_cast<int>(kernels) + 1),
                                            std::memory_order_relaxed);
}

}  // namespace torchnan
