// Generators from which a replay draws in place of the program's.
#pragma once

#include <map>

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torchnan/export.h>

namespace torchnan {

// A replay neither rewinds nor advances a generator of the program: another thread would draw a number twice. Each of
// them has a copy here, made when the replay first needs it.
class TORCHNAN_API PrivateGenerators {
 public:
  // Returns the copy of the default generator of a device.
  at::Generator of_device(c10::Device device);

  // Replaces the generator among the arguments of a call. Operators without such an argument draw inside of their
  // kernels, from operators that have one. Throws an error for a kernel that draws from the program's generator itself.
  void replace_in(const c10::OperatorHandle& op, torch::jit::Stack& stack);

 private:
  at::Generator copy_of(at::Generator original);

  std::map<c10::GeneratorImpl*, at::Generator> copies_;  // by the program's generators, which outlive the replay
};

}  // namespace torchnan
