#include "python/bindings.h"

#include <array>
#include <csignal>

namespace py = pybind11;

namespace torchnan {
namespace {

// Restores what the process does at each signal: Python's signal.signal() sets flags, and replaces handlers in C.
class KeptSignalActions {
 public:
  void enter() {
    for (size_t number = 1; number < actions_.size(); ++number) {
      known_[number] = sigaction(static_cast<int>(number), nullptr, &actions_[number]) == 0;
    }
  }

  void exit(const py::args&) const {
    for (size_t number = 1; number < actions_.size(); ++number) {
      struct sigaction now;
      if (!known_[number] || sigaction(static_cast<int>(number), nullptr, &now) != 0) continue;
      const struct sigaction& before = actions_[number];
      const bool is_same = now.sa_handler == before.sa_handler && now.sa_flags == before.sa_flags;
      if (!is_same) sigaction(static_cast<int>(number), &before, nullptr);
    }
  }

 private:
  std::array<struct sigaction, NSIG> actions_{};
  std::array<bool, NSIG> known_{};
};

}  // namespace

void bind_signal_actions(py::module_& m) {
  py::class_<KeptSignalActions>(m, "KeptSignalActions")
      .def(py::init<>())
      .def("__enter__", &KeptSignalActions::enter)
      .def("__exit__", &KeptSignalActions::exit);
  m.def("repeat_signal", [](int number) { PyErr_SetInterruptEx(number); }, py::arg("number"));
}

}  // namespace torchnan
