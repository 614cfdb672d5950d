// The values that the collectives of a compiled region bring, kept for the replay of its call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torchnan/export.h>

#include "detection/session.h"

namespace torchnan {

// A result of a functional collective. A collective with several results has several, one after the other.
struct ReceivedValue {
  std::string op;     // as generated code calls it, without the overload
  std::string group;  // name of the process group
  at::Tensor value;   // a copy, made when the collective had ended; undefined if nothing waited for it
};

// All results that a region has received, in the order of the collectives' calls.
class TORCHNAN_API ReceivedValues {
 public:
  // Runs an operation of the region, and keeps the results if it is a functional collective.
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack);

  const std::vector<ReceivedValue>& values() const { return values_; }
  int64_t bytes() const { return bytes_; }  // of all values, also if they were not copied
  void clear();

  // Keeps at most this many bytes: if a region receives more, it keeps none.
  int64_t max_bytes = 0;

 private:
  friend class ReceivingValues;

  void add_results(const c10::OperatorHandle& op, const std::string& group, const torch::jit::Stack& stack);
  void complete(const at::Tensor& awaited);
  bool is_too_large() const { return bytes_ > max_bytes; }

  std::vector<ReceivedValue> values_;
  std::vector<at::Tensor> pending_;  // the results themselves, by the index of the value, until they are complete
  int64_t bytes_ = 0;
  const DetectionSession* session_ = nullptr;  // counts failures
};

// While it exists, operations on this thread run as a part of a region, and are not intercepted otherwise.
class TORCHNAN_API ReceivingValues {
 public:
  ReceivingValues(ReceivedValues& values, const DetectionSession& session);
  ~ReceivingValues();
  ReceivingValues(const ReceivingValues&) = delete;
  ReceivingValues& operator=(const ReceivingValues&) = delete;

  // Returns the values that this thread is receiving; null outside of such a region.
  static ReceivedValues* current() noexcept;

 private:
  ReceivedValues* const outer_;
  ReceivedValues& values_;
};

}  // namespace torchnan
