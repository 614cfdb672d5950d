// The scopes that C++ code has opened (torchnan/scope.h), each interned with those around it.
#pragma once

#include <cstdint>
#include <vector>

#include <torchnan/finding.h>

namespace torchnan {

// Returns the id of a scope inside the thread's current one; that of the current one when there are too many.
uint32_t intern_scope(const Frame& frame);

// The innermost scope of this thread; 0 outside of all.
uint32_t current_scope() noexcept;
void set_current_scope(uint32_t scope) noexcept;

// Returns a scope and those around it, innermost first.
std::vector<Frame> frames_of_scope(uint32_t scope);

}  // namespace torchnan
