// The dispatch key that carries the interceptor.
#pragma once

#include <optional>
#include <string>

#include <c10/core/DispatchKey.h>

#include <torchnan/export.h>

namespace torchnan {

// Registers the boxed fallback on the first key that this PyTorch leaves free, and makes views and metadata
// operators fall through it at no cost. Does so once; later calls return the same. Throws std::runtime_error,
// saying what holds the key and what to do, if there is none.
TORCHNAN_API c10::DispatchKey install_interceptor();

// The key in use, if install_interceptor() has succeeded.
std::optional<c10::DispatchKey> interceptor_key();

}  // namespace torchnan
