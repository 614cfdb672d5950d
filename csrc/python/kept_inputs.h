// The inputs of a compiled region's call on a device, kept so that the call can be replayed after it has returned.
#pragma once

#include <torch/csrc/utils/pybind.h>  // must be first: converts tensors to and from Python

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/ArrayRef.h>

#include <torchnan/options.h>

#include "device/journal.h"
#include "device/preserved_storage.h"

namespace torchnan {

// A tensor in the state in which the program passed it. Holds its memory at most, and no tensor: that would keep its
// autograd graph, and torch.utils.swap_tensors() would fail.
class KeptTensor {
 public:
  // `is_copy`: the program does not have the tensor.
  KeptTensor(const at::Tensor& tensor, std::shared_ptr<PreservedStorage> preserved, bool is_copy);

  // Whether a tensor can be kept: it consists of its memory, shape and dtype.
  static bool is_possible(const at::Tensor& tensor);

  void hold_memory(c10::Storage memory) { held_ = std::move(memory); }
  void release_memory() { held_ = {}; }

  bool is_weight() const { return !is_copy_ && preserved_->is_weight(); }
  at::Tensor lock() const;  // undefined if its values are gone
  bool is_gone() const { return !empty_.defined() && !tensor_.lock().defined(); }
  std::optional<int64_t> exceeded_limit() const { return preserved_->exceeded_limit(); }

 private:
  bool is_unchanged() const;

  WeakTensor tensor_;
  at::Tensor empty_;  // a tensor without elements has no memory
  c10::Storage held_;
  std::shared_ptr<PreservedStorage> preserved_;
  bool is_inference_;
  bool requires_grad_;
  bool is_copy_;
};

// Records the gradients that a backward pass begins with. Its caller refers to them until it ends, so autograd adds to
// none of them in place. Needs the GIL.
void note_root_gradients(c10::ArrayRef<at::Tensor> gradients);

// The functions need the GIL.
class KeptInputs {
 public:
  // Keeps the arguments of a call that are tensors, and replaces them by None. Holds the memory of small ones, of at
  // most `max_copied_bytes` in all. That of others, and of weights, exists as long as the program keeps it. A device
  // preserves their values, at most `max_preserved_bytes` in all. `copies`: the indices of those that the program does
  // not have, ascending.
  void keep(std::vector<pybind11::object>& arguments, const std::vector<size_t>& copies, const Options& options);

  // Keeps the gradients that a backward pass is given, `None` or a tensor each: all of them or, if they have more than
  // `max_bytes` or autograd may add to one in place, none. It does so if nobody else holds the memory.
  void keep_gradients(const pybind11::sequence& given, int64_t max_bytes);

  // Forgets the gradients if the pass returns one of them: from then on autograd may add to it.
  void release_returned(c10::ArrayRef<pybind11::object> returned);

  // Releases the held memory of arguments, and forgets the gradients.
  void release_memory();

  // Returns how many bytes are held.
  int64_t bytes() const { return bytes_of_arguments_ + bytes_of_gradients_; }

  // Takes the values as they were, for a replay of the call or of its backward pass: what that reads counts as seen
  // anew, but is not written. Returns why it cannot; empty if it can.
  std::string take(bool is_backward);
  void put_back() { taken_.clear(); }

  // Puts the taken values in their places among the arguments.
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
  std::vector<at::Tensor> taken_;      // their values, during a replay
  std::vector<at::Tensor> gradients_;  // aliases
  int64_t bytes_of_arguments_ = 0;
  int64_t bytes_of_gradients_ = 0;
};

// Why the inputs of a call cannot be used any more.
inline constexpr const char* kGoneInputs = "its inputs were gone when the device reported";
inline constexpr const char* kOverwrittenInputs = "its inputs were overwritten before the device reported";

}  // namespace torchnan
