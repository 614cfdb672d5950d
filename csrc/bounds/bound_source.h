// Where the bound of a tensor comes from: its dtype, a glance if it is small, the bound cache, or a scan.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchnan/bounds.h>

#include "process/counter.h"

namespace torchnan {

// What is known of tensors whose memory the host cannot read.
class ExternalBounds {
 public:
  virtual Bound bound_of(const at::Tensor& tensor) const = 0;

 protected:
  ~ExternalBounds() = default;
};

class BoundSource {
 public:
  static constexpr int64_t kMaxQuickScanBytes = 256;  // as cheap to read as the bound cache

  // Adds the bytes that it reads to both counters. `elsewhere` may be null: nothing is known of other memory.
  BoundSource(Counter& bytes, Counter& bytes_scanned_unknown, const ExternalBounds* elsewhere)
      : bytes_(bytes), bytes_scanned_unknown_(bytes_scanned_unknown), elsewhere_(elsewhere) {}

  // What is unknown and asked for a second time is read in full, so that it is not asked for in vain again: a weight
  // that no operation has been seen to write. What is asked for once, like a batch, is not worth it.
  Bound of(const at::Tensor& tensor) const;

  // The smallest x and the smallest |x| of a small tensor; 0 if it is not small.
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
