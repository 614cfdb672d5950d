// What the replay of a compiled region needs of the core: stacks, and the provenance of replayed values.
#pragma once

#include <pybind11/pybind11.h>

namespace torchnan {

// Binds `capture_stack()`, `stack_frames(stack)`, `provenance_of(tensor)` and `set_provenance(tensor, provenance)`.
void bind_compiled_regions(pybind11::module_& m);

}  // namespace torchnan
