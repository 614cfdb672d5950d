// Lets a C method of PyTorch's call something first, without a trace in Python: the method stays the object it is, with
// its type, name and text, in the user's frame, for inspect, pickle, mocks, Dynamo and __torch_function__ alike. What
// is exchanged is the pointer behind it.
#pragma once

#include <pybind11/pybind11.h>

namespace torchnan {

// hook_method(method, look, first, count) calls look, which is written in C too, with `count` arguments of each call to
// come, from the `first` on, `self` being 0. A call that does not have these by position is left alone. What look
// raises is raised instead of the call. Returns what undoes it.
void bind_call_before(pybind11::module_& m);

}  // namespace torchnan
