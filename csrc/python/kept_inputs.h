// The inputs of a compiled region's call on a device, kept so that the call can be replayed after it has returned.
#pragma once

#include <torch/csrc/utils/pybind.h>  // must be first: converts tensors to and from Python

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/ArrayRef.h>

#include "device/journal.h"

namespace torchnan {

// A tensor in the state in which the program passed it. Holds its memory at most, and no tensor: that would keep its
// autograd graph, and torch.utils.swap_tensors() would fail.
class KeptTensor {
 public:
  // `last_event`: the one that last wrote the tensor on a device. `is_copy`: the program does not have the tensor.
  KeptTensor(const at::Tensor& tensor, EventNumber last_event, bool is_copy);

  // Whether a tensor can be kept: it consists of its memory, shape and dtype.
  static bool is_possible(const at::Tensor& tensor);

  void hold_memory(c10::Storage memory) { held_ = std::move(memory); }
  void release_memory() { held_ = {}; }

  bool is_weight() const { return is_weight_; }
  at::Tensor lock() const;  // undefined if its memory is gone
  bool is_unchanged() const;

 private:
  WeakTensor tensor_;
  at::Tensor empty_;  // a tensor without elements has no memory
  c10::Storage held_;
  c10::VariableVersion writes_;  // counts them, except in inference mode and through `data`
  uint32_t version_ = 0;
  EventNumber last_event_;
  bool requires_grad_;
  bool is_weight_;
};

// Records the gradients that a backward pass begins with. Its caller refers to them until it ends, so autograd adds to
// none of them in place. Needs the GIL.
void note_root_gradients(c10::ArrayRef<at::Tensor> gradients);

// The functions need the GIL.
class KeptInputs {
 public:
  // Keeps the arguments of a call that are tensors, and replaces them by None. Holds the memory of small ones, of at
  // most `max_bytes` in all. That of others, and of weights, exists as long as the program keeps it; `copies`: the
  // indices of those that the program does not have, ascending.
  void keep(std::vector<pybind11::object>& arguments, const std::vector<size_t>& copies, int64_t max_bytes);

  // Keeps the gradients that a backward pass is given, `None` or a tensor each: all of them or, if they have more than
  // `max_bytes` or autograd may add to one in place, none. It does so if nobody else holds the memory.
  void keep_gradients(const pybind11::sequence& given, int64_t max_bytes);

  // Forgets the gradients if the pass returns one of them: from then on autograd may add to it.
  void release_returned(c10::ArrayRef<pybind11::object> returned);

  // Releases the held memory of arguments, and forgets the gradients.
  void release_memory();

  // Returns how many bytes are held.
  int64_t bytes() const { return bytes_of_arguments_ + bytes_of_gradients_; }

  // Returns why the call, or its backward pass, cannot be replayed; empty if it can.
  std::string obstacle(bool is_backward) const;

  // Puts the tensors in their places among the arguments.
  void restore(pybind11::list& arguments) const;

  // Returns the gradients, undefined for `None`.
  const std::vector<at::Tensor>& gradients() const { return gradients_; }

 private:
  struct Argument {
    size_t index;
    KeptTensor tensor;
  };

  void forget_gradients();

  std::vector<Argument> arguments_;
  std::vector<at::Tensor> gradients_;  // aliases
  int64_t bytes_of_arguments_ = 0;
  int64_t bytes_of_gradients_ = 0;
};

// Why the inputs of a call cannot be used any more.
inline constexpr const char* kGoneInputs = "its inputs were gone when the device reported";
inline constexpr const char* kOverwrittenInputs = "its inputs were overwritten before the device reported";
inline constexpr const char* kUpdatedWeights =
    "its weights were updated before the device reported (read the loss before the optimizer steps, or use "
    "torchnan.StepGuard)";

}  // namespace torchnan
