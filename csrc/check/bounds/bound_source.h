// Finds the bound of a tensor: from its dtype, a quick scan if it is small, the bound cache, or a full scan.
#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

#include <torchnan/bounds.h>

#include "check/bounds/bound_cache.h"
#include "check/bounds/moments.h"
#include "base/counter.h"

namespace torchnan {

// The bounds of tensors whose memory the host cannot read.
class ExternalBounds {
 public:
  virtual Bound bound_of(const at::Tensor& tensor) const = 0;
  // Whether this operator was the last to write to the tensor's memory, and wrote all of it.
  virtual bool is_made_by(const at::Tensor& tensor, std::string_view op) const = 0;
  // Returns the number, at least 2, of the last write to the tensor's memory; no other write has the same. Returns 0 if
  // that write did not cover all of it, or if the values are unknown.
  virtual uint64_t write_of(const at::Tensor& tensor) const = 0;

 protected:
  ~ExternalBounds() = default;
};

class BoundSource {
 public:
  static constexpr int64_t kMaxQuickScanBytes = 256;  // as cheap to scan as to look up

  // Adds the scanned bytes to both counters. `elsewhere` may be null: then memory that the host cannot read has no
  // bounds.
  BoundSource(Counter& bytes, Counter& bytes_scanned_unknown, const Moments& moments, const ExternalBounds* elsewhere)
      : bytes_(bytes), bytes_scanned_unknown_(bytes_scanned_unknown), moments_(moments), elsewhere_(elsewhere) {}

  // Returns the bound of a tensor. If an unknown bound is requested for the second time, it is found by a full scan:
  // this is the case of a weight whose last write was not observed. For a tensor that is used once, like a batch, a
  // scan is not worth it.
  Bound of(const at::Tensor& tensor) const;

  // Returns the bound of a tensor on the host, large or small. An unknown bound is found by a scan at once.
  Bound known_or_scanned(const at::Tensor& tensor) const;

  // Whether this operator was the last to write a tensor, whose values are finite.
  bool is_made_by(const at::Tensor& tensor, std::string_view op) const;

  // Whether this operator has computed the first tensor from the current values of the others.
  bool describes(const at::Tensor& description, std::string_view op, c10::ArrayRef<const at::Tensor*> described) const;
  // Returns the stamp that the results of this operator get if its arguments have these stamps.
  static uint64_t stamp_of_description(std::string_view op, c10::ArrayRef<uint64_t> stamps);

  // Whether tighten() would find a better bound for this tensor, whose bound exceeds `useful`.
  static bool may_tighten(const at::Tensor& tensor, double useful);
  // Scans a tensor for its exact bound. False if it is not finite.
  bool tighten(const at::Tensor& tensor) const;

  // Return the smallest x and the smallest |x| of a small tensor; 0 if the tensor is not small, or the result negative.
  double min_value_of(const at::Tensor& tensor) const;
  double min_abs_of(const at::Tensor& tensor) const;

  // Returns a stamp that identifies the current, finite values of a tensor; 0 if there is none.
  uint64_t stamp_of(const at::Tensor& tensor) const;

  // Returns a bound of |x / y| from the common history of x and y.
  double quotient_of(const at::Tensor& x, const at::Tensor& y) const { return moments_.quotient(x, y, *this); }
  // Returns a lower bound of |x| from the history of a tensor; 0 if unknown.
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
