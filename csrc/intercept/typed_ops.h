// The operators that are intercepted without boxing.
#pragma once

#include <torch/library.h>

namespace torchnan {

// `aten` is a library for the interceptor's key.
void intercept_hot_operators_typed(torch::Library& aten);
void intercept_small_operators_typed(torch::Library& aten);

}  // namespace torchnan
