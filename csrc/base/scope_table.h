// The scopes that C++ code has opened (torchnan/scope.h), each interned with those around it.
#pragma once

#include <cstdint>
#include <vector>

#include <torchnan/finding.h>

namespace torchnan {

// Returns the innermost scope of this thread; 0 outside of all.
uint32_t current_scope() noexcept;

// Returns a scope and those around it, innermost first.
std::vector<Frame> frames_of_scope(uint32_t scope);

}  // namespace torchnan
