// The border of a compiled region: records everything that a replay of a call needs, checks the results of the call,
// and takes over the findings of the replay.
#pragma once

#include <pybind11/pybind11.h>

namespace torchnan {

// Whether this thread replays a region, apart from the program. Its operations are then not operations of the program.
bool is_replaying() noexcept;

// Binds `RegionBorder`, `RegionCall`, and the functions that a replay uses.
void bind_compiled_regions(pybind11::module_& m);

}  // namespace torchnan
