// Hooks C methods of PyTorch invisibly to Python: the method object, its type, name and documentation stay the same for
// inspect, pickle, mocks, Dynamo and __torch_function__. Only the pointer to its C function is replaced.
#pragma once

#include <pybind11/pybind11.h>

namespace torchnan {

// Adds hook_method(method, callback, first, count, after) to the module. It makes each call of `method` first call
// `callback` with `count` positional arguments, two at most, beginning with number `first`; `self` is number 0. With
// `after`, the callback comes after the call, also if that has raised. A call without these positional arguments is not
// hooked. An exception of the callback is raised instead of the call. Returns a function that removes the hook.
//
// Adds hook_attribute(descriptor, callback), which does the same for one attribute: the callback is called with the
// object whose attribute is read, or with the value that it is set to.
void bind_method_hooks(pybind11::module_& m);

}  // namespace torchnan
