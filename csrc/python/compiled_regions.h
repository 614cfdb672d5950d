// The border of a compiled region: records what a replay of a call needs, checks what the call returns, and takes over
// what the replay finds.
#pragma once

#include <pybind11/pybind11.h>

namespace torchnan {

// Whether this thread replays or compiles a region: what it does there, the program does not do.
bool is_replaying() noexcept;

// Binds `RegionBorder`, `RegionCall`, and the functions that a replay uses.
void bind_compiled_regions(pybind11::module_& m);

}  // namespace torchnan
