// A scan on as many threads as PyTorch may use.
#pragma once

#include <cstdint>

#include "scan/float_format.h"

namespace torchnan {

// Computes max_magnitude() on PyTorch's own threads if the memory is large enough.
uint64_t max_magnitude_shared(const void* data, int64_t words, const FloatFormat& format);

}  // namespace torchnan
