// Finds the bound of a tensor: from its dtype, a quick scan if it is small, the bound cache, or a full scan.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchnan/bounds.h>

#include "process/counter.h"

namespace torchnan {

// The bounds of tensors whose memory the host cannot read.
class ExternalBounds {
 public:
  virtual Bound bound_of(const at::Tensor& tensor) const = 0;

 protected:
  ~ExternalBounds() = default;
};

class BoundSource {
 public:
  static constexpr int64_t kMaxQuickScanBytes = 256;  // as cheap to scan as to look up

  // Counts the bytes that it scans in both counters. `elsewhere` may be null: then other memory has no bounds.
  BoundSource(Counter& bytes, Counter& bytes_scanned_unknown, const ExternalBounds* elsewhere)
      : bytes_(bytes), bytes_scanned_unknown_(bytes_scanned_unknown), elsewhere_(elsewhere) {}

  // Returns the bound of a tensor. An unknown bound that is requested for the second time is found by a full scan, as
  // for a weight that no operation was seen to write. For a tensor that is used once, like a batch, a scan is not worth
  // it.
  Bound of(const at::Tensor& tensor) const;

  // Return the smallest x and the smallest |x| of a small tensor; 0 if it is not small, or negative.
  double min_value_of(const at::Tensor& tensor) const;
  double min_abs_of(const at::Tensor& tensor) const;

 private:
  static constexpr int64_t kMaxScannedForMinimum = 16384;  // bytes

  Bound cached_bound(const at::Tensor& tensor) const;
  Bound scanned_bound(const at::Tensor& tensor) const;

  Counter& bytes_;
  Counter& bytes_scanned_unknown_;
  const ExternalBounds* elsewhere_;
};

}  // namespace torchnan
