#include "bounds/bound_source.h"

#include <cmath>

#include "bounds/dtype_range.h"
#include "bounds/bound_cache.h"
#include "scan/tensor_scan.h"

namespace torchnan {

Bound BoundSource::of(const at::Tensor& tensor) const {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const c10::ScalarType dtype = tensor.scalar_type();
  if (range_of(dtype).limit == 0) {
    const double largest = largest_integer(dtype);
    return largest == 0 ? Bound{} : Bound{largest, dtype == c10::ScalarType::Bool};
  }
  if (impl.numel() == 0) return {0, true};
  if (!impl.is_cpu()) return elsewhere_ == nullptr ? Bound{} : elsewhere_->bound_of(tensor);
  if (static_cast<int64_t>(tensor.nbytes()) > kMaxQuickScanBytes) return remembered(tensor);
  if (impl.numel() == 1) {
    const auto value = scalar_value(tensor);
    return value ? Bound{std::abs(*value), *value >= 0} : remembered(tensor);
  }
  const Verdict verdict = check_finite(tensor);
  return verdict.skip == Skip::kNone && verdict.finite ? Bound{verdict.most} : remembered(tensor);
}

Bound BoundSource::remembered(const at::Tensor& tensor) const {
  const BoundCache::Note note = bound_cache().find(tensor);
  switch (note.known) {
    case BoundCache::Known::kFinite:
    case BoundCache::Known::kFiniteOrMasked:
      return note.bound;
    case BoundCache::Known::kRequested:
    case BoundCache::Known::kStale:
      return note.exported ? Bound{} : anchored(tensor);
    case BoundCache::Known::kNothing:
      bound_cache().note_asked(tensor, note.op);
      return {};
    default:
      return {};
  }
}

Bound BoundSource::anchored(const at::Tensor& tensor) const {
  const Verdict verdict = check_finite(tensor);
  if (verdict.skip != Skip::kNone) return {};
  bytes_.add(verdict.bytes);
  bytes_scanned_unknown_.add(verdict.bytes);
  if (!verdict.finite) return {};
  const Bound bound{verdict.most};
  bound_cache().note_read(tensor, bound);
  return bound;
}

double BoundSource::least_of(const at::Tensor& tensor) const {
  if (static_cast<int64_t>(tensor.nbytes()) > kLeastBytes) return 0;
  const auto extremes = smallest_of(tensor);
  return extremes && extremes->value > 0 ? extremes->value : 0;
}

double BoundSource::least_magnitude_of(const at::Tensor& tensor) const {
  if (static_cast<int64_t>(tensor.nbytes()) > kLeastBytes) return 0;
  const auto extremes = smallest_of(tensor);
  return extremes ? extremes->magnitude : 0;
}

}  // namespace torchnan
