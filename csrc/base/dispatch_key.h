// Where torchnan sits in PyTorch's dispatcher.
#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace torchnan {

// A key that no operator of PyTorch uses, below autograd and below the Python modes, where every kernel-level operation
// passes. PyTorch reserves it for future use: install_interceptor() refuses to take it from another library.
inline constexpr c10::DispatchKey kInterceptorKey = c10::DispatchKey::Fake;

// While it exists, the operations that this thread's kernels call internally are not intercepted. The same as
// c10::impl::ExcludeDispatchKeyGuard, without its calls.
class NoNestedCalls {
 public:
  NoNestedCalls() : keys_(c10::impl::raw_local_dispatch_key_set), was_excluded_(keys_.excluded().has(kInterceptorKey)) {
    keys_.set_excluded(keys_.excluded().add(kInterceptorKey));
  }
  ~NoNestedCalls() {
    if (!was_excluded_) keys_.set_excluded(keys_.excluded().remove(kInterceptorKey));
  }
  NoNestedCalls(const NoNestedCalls&) = delete;
  NoNestedCalls& operator=(const NoNestedCalls&) = delete;

 private:
  c10::impl::PODLocalDispatchKeySet& keys_;  // of this thread
  const bool was_excluded_;
};

// Returns those of a call's keys that come after the interceptor.
inline c10::DispatchKeySet below_interceptor(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kInterceptorKey);
}

}  // namespace torchnan
