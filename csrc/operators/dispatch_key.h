// Where torchnan sits in PyTorch's dispatcher.
#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>

#include <torchnan/export.h>

namespace torchnan {

// A key that no operator of PyTorch uses, below autograd and below the Python modes, where every kernel-level operation
// passes. PyTorch means to use it itself one day: install_interceptor() refuses to take it away.
inline constexpr c10::DispatchKey kInterceptorKey = c10::DispatchKey::Fake;

// Of a call's keys, those that are left after the interceptor.
inline c10::DispatchKeySet below_interceptor(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kInterceptorKey);
}

// Registers the interceptor, once per process. Throws std::runtime_error if its key is taken.
TORCHNAN_API void install_interceptor();

}  // namespace torchnan
