// Operations of torchnan itself, which the program must not notice.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include "base/dispatch_key.h"

namespace torchnan {

class SilentWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

// While it exists, operations of this thread reach only their kernels: modes, recorders and autograd do not see them.
class UnseenCalls {
 public:
  UnseenCalls() : none_above_(above_kernels()), silent_(&warnings_) {}

 private:
  // Without the bits of backends, which a guard would not remove again.
  static c10::DispatchKeySet above_kernels() {
    const c10::DispatchKeySet above = c10::DispatchKeySet(c10::DispatchKeySet::FULL) -
                                      c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kInterceptorKey);
    return {c10::DispatchKeySet::RAW,
            above.add(c10::DispatchKey::Python).raw_repr() & ~static_cast<uint64_t>(c10::full_backend_mask)};
  }

  SilentWarnings warnings_;
  at::DisableRecordFunctionGuard no_recorder_;
  c10::impl::ExcludeDispatchKeyGuard none_above_;
  c10::WarningUtils::WarningHandlerGuard silent_;
};

}  // namespace torchnan
