// Generators from which a replay draws in place of the program's.
#pragma once

#include <map>
#include <optional>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torchnan/export.h>

namespace torchnan {

// A generator's state, uint8 on the host.
TORCHNAN_API at::Tensor state_of(at::Generator generator);
TORCHNAN_API bool is_same_state(const at::Tensor& one, const at::Tensor& other);

// A replay neither rewinds nor advances a generator of the program: another thread would draw a number twice. Each of
// them has a copy here, made when the replay first needs it.
class TORCHNAN_API PrivateGenerators {
 public:
  // `of_step`: functions of the program run. They may make generators and set their states, so those that they give to
  // operators are used themselves, and put back at the end. Their calls may be traced, into code that outlives the
  // replay, which must not hold a copy: a call under a dispatch mode has its generator replaced when the mode runs it.
  explicit PrivateGenerators(bool of_step = false) : of_step_(of_step) {}
  ~PrivateGenerators();
  PrivateGenerators(const PrivateGenerators&) = delete;
  PrivateGenerators& operator=(const PrivateGenerators&) = delete;

  bool concerns(c10::DispatchKeySet keys) const { return !of_step_ || !keys.has(c10::DispatchKey::Python); }

  // Returns the copy of the default generator of a device.
  at::Generator of_device(c10::Device device);

  // Returns the copy of a generator; itself, if it is one.
  at::Generator copy_of(at::Generator original);

  // A kernel of a device that has no argument for a generator draws from the program's: while this exists, that has the
  // state of its copy. Numbers that another thread draws from it meanwhile, for the time that the host takes to start
  // one kernel, are not its own.
  class Lent {
   public:
    Lent(at::Generator original, at::Generator copy);
    ~Lent();
    Lent(const Lent&) = delete;
    Lent& operator=(const Lent&) = delete;

   private:
    at::Generator original_;
    at::Generator copy_;
    at::Tensor kept_;
    at::Tensor given_;
  };

  // Replaces the generator among the arguments of a call. Operators without such an argument draw inside of their
  // kernels, from operators that have one; where a kernel draws itself, `lent` is filled. Throws an error if the device
  // of such a kernel does not show its generator.
  void replace_in(const c10::OperatorHandle& op, torch::jit::Stack& stack, std::optional<Lent>& lent);

 private:
  at::Generator in_place_of(const at::Generator& given);

  const bool of_step_;
  std::map<c10::GeneratorImpl*, std::pair<at::Generator, at::Tensor>>
      before_;  // generators given to operators of a step
  std::map<c10::GeneratorImpl*, at::Generator>
      copies_;  // by the program's default generators, and those given to a graph
};

}  // namespace torchnan
