#include "bounds/kernels.h"

#include <array>
#include <atomic>

#include <ATen/detail/CUDAHooksInterface.h>

namespace torchnan {
namespace {

using Table = std::array<std::atomic<Kernels>, c10::COMPILE_TIME_MAX_DEVICE_TYPES>;

Table* make_table() {
  auto* table = new Table{};
  const bool is_rocm = at::detail::getCUDAHooks().hasROCM();
  (*table)[static_cast<size_t>(c10::kCUDA)] = is_rocm ? Kernels::kUnknown : Kernels::kNvidia;
  return table;
}

// Never destroyed: operators run until the process ends.
Table& declared() {
  static Table& table = *make_table();
  return table;
}

}  // namespace

Kernels kernels_of(c10::DeviceType type) noexcept {
  if (type == c10::kCPU) return Kernels::kHost;
  return declared()[static_cast<size_t>(type)].load(std::memory_order_relaxed);
}

void declare_kernels(c10::DeviceType type, Kernels kernels) noexcept {
  declared()[static_cast<size_t>(type)].store(kernels, std::memory_order_relaxed);
}

}  // namespace torchnan
