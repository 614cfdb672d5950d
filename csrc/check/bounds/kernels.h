// Whose kernels run on a type of device.
#pragma once

#include <c10/core/DeviceType.h>

#include <torchnan/bounds.h>
#include <torchnan/export.h>

namespace torchnan {

// Returns whose kernels run on devices of this type: kHost on the CPU, kNvidia for CUDA, kUnknown for any other type
// and for ROCm, whose tensors are of the type CUDA as well.
TORCHNAN_API Kernels kernels_of(c10::DeviceType type) noexcept;

// Declares whose kernels run on devices of a type. For a device whose kernels are derived from those of another.
TORCHNAN_API void declare_kernels(c10::DeviceType type, Kernels kernels) noexcept;

}  // namespace torchnan
