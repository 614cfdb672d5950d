// The parts of the module torchnan._C, each bound in a file of this folder.
#pragma once

#include <pybind11/pybind11.h>

namespace torchnan {

// Binds the callbacks of the hooks on functions of PyTorch: see the table in torchnan/detection/hooks.py. They examine
// the arguments of a hooked function before it runs. They take any object: if PyTorch would reject it, it is left for
// PyTorch to reject.
void bind_hook_callbacks(pybind11::module_& m);

// Binds hooks on C methods of PyTorch that are invisible to Python: the method object, its type, name and documentation
// stay the same for inspect, pickle, mocks, Dynamo and __torch_function__. Only the pointer to its C function is
// replaced.
//
// Adds hook_method(method, callback, first, count, after) to the module. Each call of `method` then first calls
// `callback` with `count` positional arguments, at most two, beginning with number `first`; `self` is number 0. With
// `after`, the callback runs after the call, even if that raised. A call without these positional arguments is not
// hooked. An exception of the callback is raised instead of the call. Returns a function that removes the hook.
//
// Adds hook_attribute(descriptor, callback), which does the same for one attribute: the callback is called with the
// object whose attribute is read, or with the value that it is set to.
void bind_method_hooks(pybind11::module_& m);

// Binds the callbacks of futures. They run later, often on a thread of the process group, but belong to the location
// where they were made.
void bind_callback_sites(pybind11::module_& m);

// Adds register_bound(op, rule, Bound) to the module, for bound rules written in Python.
void bind_bound_rules(pybind11::module_& m);

// Adds may_have_buffers(model) to the module. It returns False only if model.named_buffers() yields nothing.
void bind_buffers(pybind11::module_& m);

// Adds measure_gradients(parameters, buffers) to the module, for lists of pairs of a name and a parameter or buffer. It
// returns the norm of each gradient that there is, the largest magnitude in all of them, the names of those that are
// not finite, and the names of the buffers that are not. It returns None if one of them is of a class that may hold its
// values elsewhere, such as DTensor.
// Adds loss_values(losses) to the module, for tensors of one element. It returns their values, or None if one of them
// is of such a class, or an integer. Detection does not see it.
// Adds begin_measuring(parameters, buffers, losses), which asks for both and does not wait. Its StepMeasurement has
// stats() and loss_values(), which wait. begin_step(written, copied, max_bytes) returns an UndoableStep. Returns None
// if not all of them are ordinary tensors on one device that can undo a step, and if there is no gradient.
void bind_gradients(pybind11::module_& m);

// Adds start_proved_step(groups, state) and finish_proved_step(is_completed) to the module, for steps of PyTorch's
// optimizers in Python that are proved finite as a whole.
void bind_proved_steps(pybind11::module_& m);

// Adds host_numbers(tensors) and host_sample(tensor, step) to the module: the values of tensors of one element, and the
// bytes of every `step`-th element, counted row by row. Each is None for a tensor whose elements do not lie in the
// memory of the host as they are. No operator runs.
void bind_host_memory(pybind11::module_& m);

// Adds the class RandomMemory to the module. It notices which random generators have moved, by their memory: that is
// much less than to read their states.
void bind_random_memory(pybind11::module_& m);

// Adds numbers_of_generated_code(seed, distribution, size) and integers_of_generated_code(seed, low, high, size) to the
// module: the tensors that generated code for the CPU draws with a seed. The distribution is "rand" or "randn".
void bind_generated_numbers(pybind11::module_& m);

// Adds KeptSignalActions and repeat_signal(number) to the module. The first is a context manager that restores the
// flags and handlers in C of all signals. The second makes Python call its handler of a signal as if it arrived now.
void bind_signal_actions(pybind11::module_& m);

// Adds TwinGuards and call_unless_running(code, change) to the module. The first checks the guards of the compiled code
// of one function as if detection were off.
void bind_twin_guards(pybind11::module_& m);

// Returns the objects of this type that Python's garbage collector tracks.
pybind11::list instances_of(const pybind11::type& type);

// Returns the address of the counter of CPython that increases whenever the GIL passes from one thread to another.
// Requires the GIL.
const unsigned long* python_thread_switches();

}  // namespace torchnan
