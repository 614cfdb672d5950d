// A scan by as many threads as PyTorch may use.
#pragma once

#include <cstdint>

#include "scan/float_format.h"

namespace torchnan {

// max_magnitude(), by PyTorch's own threads where there is enough to share.
uint64_t max_magnitude_shared(const void* data, int64_t words, const FloatFormat& format);

}  // namespace torchnan
