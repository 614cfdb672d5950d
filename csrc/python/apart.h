// Runs work of torchnan on a thread of the program, apart from what the program has set there.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <pybind11/pybind11.h>

#include "origin/current_call_site.h"
#include "detection/private_generators.h"

namespace torchnan {

// While it exists, this thread is like a new one: no modes, hooks, transforms, autocast, profilers or sessions of the
// program, no backward node that runs, and generators that are copies of the program's. The program owns its locks and
// its Python thread-locals still. Requires the GIL.
class Apart {
 public:
  enum class Work {
    kStep,   // functions of the program: sessions inside check them as they check the program
    kGraph,  // what a compiled region computes: no frames of the program's stack
  };

  explicit Apart(Work work);
  ~Apart();
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;

  // The innermost one of this thread; null if nothing runs apart on it.
  static Apart* current() noexcept;

  Work work() const noexcept { return work_; }
  PrivateGenerators& generators() { return generators_; }

 private:
  // A function that Python calls at the events of a thread, for a debugger or a profiler.
  struct Observer {
    Py_tracefunc function;
    pybind11::object argument;
  };

  const Work work_;
  Apart* const outer_;  // a step that a graph is a part of, or null
  at::ThreadLocalStateGuard as_new_;
  PrivateGenerators generators_;
  OutsideOfNode outside_of_node_;
  Observer profiler_;
  Observer tracer_;
};

void bind_apart(pybind11::module_& m);

}  // namespace torchnan
