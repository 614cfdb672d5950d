// Hooks C methods of PyTorch invisibly to Python: the method object, its type, name and documentation stay the same for
// inspect, pickle, mocks, Dynamo and __torch_function__. Only the pointer to its C function is replaced.
#pragma once

#include <pybind11/pybind11.h>

namespace torchnan {

// Adds hook_method(method, callback, first, count, after) to the module. Each call of `method` then first calls
// `callback` with `count` positional arguments, at most two, beginning with number `first`; `self` is number 0. With
// `after`, the callback runs after the call, even if that raised. A call without these positional arguments is not
// hooked. An exception of the callback is raised instead of the call. Returns a function that removes the hook.
//
// Adds hook_attribute(descriptor, callback), which does the same for one attribute: the callback is called with the
// object whose attribute is read, or with the value that it is set to.
void bind_method_hooks(pybind11::module_& m);

}  // namespace torchnan
