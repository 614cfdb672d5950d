// Runs work of torchnan on a thread of the program, apart from what the program has set there.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <pybind11/pybind11.h>

#include "call_sites/current_call_site.h"
#include "detection/private_generators.h"

namespace torchnan {

// While it exists, this thread is like a new one: no modes, hooks, transforms, autocast, profilers or sessions of the
// program, no frames of its stack, no backward node that runs, and generators that are copies of the program's.
// The program owns its locks and its Python thread-locals still. Requires the GIL.
class Apart {
 public:
  Apart();
  ~Apart();
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;

  // Those of this thread; null if nothing runs apart on it.
  static Apart* current() noexcept;

  PrivateGenerators& generators() { return generators_; }

 private:
  // A function that Python calls at the events of a thread, for a debugger or a profiler.
  struct Observer {
    Py_tracefunc function;
    pybind11::object argument;
  };

  at::ThreadLocalStateGuard as_new_;
  PrivateGenerators generators_;
  OutsideOfNode outside_of_node_;
  Observer profiler_;
  Observer tracer_;
};

void bind_apart(pybind11::module_& m);

}  // namespace torchnan
