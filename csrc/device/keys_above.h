// The dispatch keys that operations of torchnan itself leave out.
#pragma once

#include <c10/core/DispatchKeySet.h>

#include "base/dispatch_key.h"

namespace torchnan {

// Excluded while torchnan computes with operations of PyTorch: nobody then sees them but the device.
inline constexpr c10::DispatchKeySet kKeysAbove =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
    c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, kInterceptorKey});

}  // namespace torchnan
