// torchnan::measure for C++.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <torchnan/export.h>

namespace torchnan {

// Measures by operations of PyTorch that do not synchronize: for devices whose memory the host cannot read. `xs` must
// not be empty, and its tensors must be strided.
at::Tensor measure_by_operations(at::TensorList xs);

// Returns the 2-norm and the largest magnitude of each tensor, like torchnan::measure, but as numbers, and for tensors
// on several devices; synchronizes once for each device. Detection and autograd do not see it.
TORCHNAN_API std::vector<std::pair<double, double>> norms_and_magnitudes(at::TensorList xs);

// The same for tensors on one device other than the host, which is not waited for: it has been asked on its current
// stream. Not thread-safe.
class TORCHNAN_API DeviceMeasurement {
 public:
  // `numbers`: tensors of one element on the device, which are copied to the host as well.
  DeviceMeasurement(at::TensorList xs, at::TensorList numbers);

  // Wait until it has.
  std::vector<std::pair<double, double>> rows() const;
  const std::vector<at::Tensor>& numbers() const;

  // Norms and magnitudes on the device, [xs, 2], float64.
  const at::Tensor& table() const { return table_; }

 private:
  void wait() const;

  at::Tensor table_;
  at::Tensor rows_;  // on the host
  std::vector<at::Tensor> numbers_;
  c10::Event measured_;
};

}  // namespace torchnan
