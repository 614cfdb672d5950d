// Registers the interceptor with PyTorch's dispatcher.
#pragma once

#include <torchnan/export.h>

namespace torchnan {

// Registers the interceptor, once per process. Throws std::runtime_error if its key is taken.
TORCHNAN_API void install_interceptor();

}  // namespace torchnan
