// Finds the bound of a tensor: from its dtype, a quick scan if it is small, the bound cache, or a full scan.
#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

#include <torchnan/bounds.h>

#include "bounds/bound_cache.h"
#include "bounds/moments.h"
#include "process/counter.h"

namespace torchnan {

// The bounds of tensors whose memory the host cannot read.
class ExternalBounds {
 public:
  virtual Bound bound_of(const at::Tensor& tensor) const = 0;
  // Whether this operator was the last to write to the tensor's memory, and has written all of it.
  virtual bool is_made_by(const at::Tensor& tensor, std::string_view op) const = 0;
  // Returns a number, 2 or more, that the last write to the tensor's memory shares with no other. 0 if it has not
  // written all of it, or nothing is known of the values.
  virtual uint64_t write_of(const at::Tensor& tensor) const = 0;

 protected:
  ~ExternalBounds() = default;
};

class BoundSource {
 public:
  static constexpr int64_t kMaxQuickScanBytes = 256;  // as cheap to scan as to look up

  // Counts the bytes that it scans in both counters. `elsewhere` may be null: then other memory has no bounds.
  BoundSource(Counter& bytes, Counter& bytes_scanned_unknown, const Moments& moments, const ExternalBounds* elsewhere)
      : bytes_(bytes), bytes_scanned_unknown_(bytes_scanned_unknown), moments_(moments), elsewhere_(elsewhere) {}

  // Returns the bound of a tensor. An unknown bound that is requested for the second time is found by a full scan, as
  // for a weight that no operation was seen to write. For a tensor that is used once, like a batch, a scan is not worth
  // it.
  Bound of(const at::Tensor& tensor) const;

  // Returns the bound of a tensor of the host, large or small. An unknown one is found by a scan at once.
  Bound known_or_scanned(const at::Tensor& tensor) const;

  // Whether this operator was the last to write a tensor, whose values are finite.
  bool is_made_by(const at::Tensor& tensor, std::string_view op) const;

  // Whether tighten() would find a better bound than this tensor's, which is larger than `useful`.
  static bool may_tighten(const at::Tensor& tensor, double useful);
  // Scans a tensor for its exact bound. False if it is not finite.
  bool tighten(const at::Tensor& tensor) const;

  // Return the smallest x and the smallest |x| of a small tensor; 0 if it is not small, or negative.
  double min_value_of(const at::Tensor& tensor) const;
  double min_abs_of(const at::Tensor& tensor) const;

  // Returns what tells the values of a tensor, which are finite, from all that were there before; 0 if nothing does.
  uint64_t stamp_of(const at::Tensor& tensor) const;

  // Returns a bound of |x / y| from their common history.
  double quotient_of(const at::Tensor& x, const at::Tensor& y) const { return moments_.quotient(x, y, *this); }
  // Returns what no |x| is less than by the history of a tensor; 0 if that is not known.
  double floor_of(const at::Tensor& tensor) const { return moments_.floor_of(tensor, *this); }

 private:
  static constexpr int64_t kMaxScannedForMinimum = 16384;  // bytes

  Bound cached_bound(const at::Tensor& tensor) const;
  Bound bound_in(const BoundCache::Entry& entry, const at::Tensor& tensor) const;
  Bound scanned_bound(const at::Tensor& tensor) const;

  Counter& bytes_;
  Counter& bytes_scanned_unknown_;
  const Moments& moments_;
  const ExternalBounds* elsewhere_;
};

}  // namespace torchnan
