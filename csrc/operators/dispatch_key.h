// Where torchnan sits in PyTorch's dispatcher.
#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>

namespace torchnan {

// A key that no operator of PyTorch uses, below autograd and below the Python modes, where every kernel-level operation
// passes. PyTorch reserves it for future use: install_interceptor() refuses to take it from another library.
inline constexpr c10::DispatchKey kInterceptorKey = c10::DispatchKey::Fake;

// Returns those of a call's keys that come after the interceptor.
inline c10::DispatchKeySet below_interceptor(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kInterceptorKey);
}

}  // namespace torchnan
