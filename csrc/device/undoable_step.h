// A step of an optimizer that its device undoes if the gradients turn out to be bad, while the host goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchnan/export.h>

#include "check/scan/measure.h"
#include "device/preserved_storage.h"
#include "device/scanner.h"

namespace torchnan {

// Not thread-safe. All tensors are on the device of the measurement or on the host.
class TORCHNAN_API UndoableStep {
 public:
  // A tensor that has been written, and a copy of it from before, with the same strides.
  using Copied = std::pair<at::Tensor, at::Tensor>;

  // Whether the device of a tensor can undo steps, if there is room for what they overwrite.
  static bool is_possible_on(const at::Tensor& tensor);

  // Called before the step. The device copies the tensors that the step writes to reserved memory if it finds a
  // magnitude in the measurement that is not finite; those on the host are copied now. Returns null if this is not
  // possible: a tensor has gaps or lies on another device, the stream is being captured, or the copies do not fit into
  // `max_bytes`, with those of all guards.
  static std::unique_ptr<UndoableStep> begin(std::shared_ptr<const DeviceMeasurement> measurement,
                                             const std::vector<at::Tensor>& written, std::vector<Copied> copied,
                                             int64_t max_bytes);

  // Called after the step, on the same stream: lets the device put back its part. Throws std::runtime_error if the
  // device refuses it, or if a tensor has got other memory meanwhile.
  void end();

  // Puts back what lies on the host, and marks all tensors as written. Called when it is known that the step is bad.
  void undo_on_host();

 private:
  UndoableStep() = default;
  bool keep(const std::vector<at::Tensor>& written, int64_t max_bytes);
  void launch(bool is_back, void* stream) const;

  std::shared_ptr<const DeviceMeasurement> measurement_;
  Scanner* scanner_ = nullptr;
  std::shared_ptr<const ReservedMemory> room_;
  std::vector<at::Tensor> on_device_;
  std::vector<Copied> copied_;
  std::vector<cuda::CopyEntry> entries_;  // from the tensors to the room, in the order of `on_device_`
  std::vector<at::Tensor> on_host_;
  std::vector<char> host_copies_;
};

}  // namespace torchnan
