#include "check/bounds/bound_source.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include <c10/core/DynamicCast.h>
#include <c10/util/SmallVector.h>
#include <c10/util/hash.h>

#include "check/bounds/dtype_range.h"
#include "check/bounds/bound_cache.h"
#include "check/scan/storage_of.h"
#include "check/scan/tensor_scan.h"

namespace torchnan {
namespace {

// The value of an integer tensor of one element, such as a Python number.
std::optional<double> integer_value(const at::Tensor& tensor) {
  const bool is_readable = tensor.numel() == 1 && tensor.is_cpu() && is_plain(tensor);
  if (!is_readable || !c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/true)) return std::nullopt;
  return c10::fetch_and_cast<double>(tensor.scalar_type(), tensor.const_data_ptr());
}

}  // namespace

Bound BoundSource::of(const at::Tensor& tensor) const {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  const c10::ScalarType dtype = tensor.scalar_type();
  if (range_of(dtype).limit == 0) {
    const double largest = largest_integer(dtype);
    if (largest == 0) return {};
    const auto value = integer_value(tensor);
    return value ? Bound{std::abs(*value), *value >= 0} : Bound{largest, dtype == c10::ScalarType::Bool};
  }
  if (impl.numel() == 0) return {0, true};
  if (!impl.is_cpu()) return elsewhere_ == nullptr ? Bound{} : elsewhere_->bound_of(tensor);
  if (static_cast<int64_t>(tensor.nbytes()) > kMaxQuickScanBytes) return cached_bound(tensor);
  if (impl.numel() == 1) {
    const auto value = scalar_value(tensor);
    return value ? Bound{std::abs(*value), *value >= 0} : cached_bound(tensor);
  }
  const ScanResult verdict = check_finite(tensor);
  return verdict.skip == Skip::kNone && verdict.finite ? Bound{verdict.max_abs} : cached_bound(tensor);
}

Bound BoundSource::cached_bound(const at::Tensor& tensor) const {
  Bound known;
  if (bound_cache().find_bound(tensor, known)) return known;
  const BoundCache::Entry entry = bound_cache().find(tensor);
  if (entry.state != BoundCache::State::kUnknown) return bound_in(entry, tensor);
  bound_cache().record_requested(tensor, entry.op);
  return {};
}

Bound BoundSource::known_or_scanned(const at::Tensor& tensor) const {
  return bound_in(bound_cache().find(tensor), tensor);
}

Bound BoundSource::bound_in(const BoundCache::Entry& entry, const at::Tensor& tensor) const {
  switch (entry.state) {
    case BoundCache::State::kFinite:
    case BoundCache::State::kFiniteOrMasked:
      return entry.bound;
    case BoundCache::State::kUnknown:
    case BoundCache::State::kRequested:
    case BoundCache::State::kStale:
      return entry.exported ? Bound{} : scanned_bound(tensor);
    default:
      return {};
  }
}

Bound BoundSource::scanned_bound(const at::Tensor& tensor) const {
  const ScanResult verdict = check_finite(tensor);
  if (verdict.skip != Skip::kNone) return {};
  bytes_.add(verdict.bytes);
  bytes_scanned_unknown_.add(verdict.bytes);
  if (!verdict.finite) return {};
  const Bound bound{verdict.max_abs};
  bound_cache().record_read(tensor, bound);
  return bound;
}

bool BoundSource::is_made_by(const at::Tensor& tensor, std::string_view op) const {
  if (!tensor.is_cpu()) return elsewhere_ != nullptr && elsewhere_->is_made_by(tensor, op);
  const BoundCache::Entry entry = bound_cache().find(tensor);
  return entry.state == BoundCache::State::kFinite && entry.op != nullptr && *entry.op == op;
}

// On the host, stamps identify the values; on a device, the order of the writes says whether there was another since.
bool BoundSource::describes(const at::Tensor& description, std::string_view op,
                            c10::ArrayRef<const at::Tensor*> described) const {
  const uint64_t own = stamp_of(description);
  if (own == 0) return false;
  c10::SmallVector<uint64_t, 2> stamps;
  for (const at::Tensor* tensor : described) {
    if (tensor->is_cpu() != description.is_cpu()) return false;
    stamps.push_back(stamp_of(*tensor));
  }
  if (description.is_cpu()) return own == stamp_of_description(op, stamps);
  const auto is_older = [own](uint64_t write) { return write != 0 && write < own; };
  return elsewhere_->is_made_by(description, op) && std::all_of(stamps.begin(), stamps.end(), is_older);
}

uint64_t BoundSource::stamp_of_description(std::string_view op, c10::ArrayRef<uint64_t> stamps) {
  if (std::find(stamps.begin(), stamps.end(), 0) != stamps.end()) return 0;
  return c10::hash_combine(std::hash<std::string_view>()(op), c10::hash<c10::ArrayRef<uint64_t>>()(stamps));
}

uint64_t BoundSource::stamp_of(const at::Tensor& tensor) const {
  if (tensor.is_cpu()) return bound_cache().find(tensor).stamp;
  return elsewhere_ == nullptr ? 0 : elsewhere_->write_of(tensor);
}

bool BoundSource::may_tighten(const at::Tensor& tensor, double useful) {
  const bool is_looked_up = tensor.is_cpu() && static_cast<int64_t>(tensor.nbytes()) > kMaxQuickScanBytes;
  if (!is_looked_up || !covers_whole_storage(tensor, *storage_of(tensor))) return false;
  const BoundCache::Entry entry = bound_cache().find(tensor);
  return entry.state == BoundCache::State::kFinite && entry.bound.max_abs > useful && entry.bound.known();
}

bool BoundSource::tighten(const at::Tensor& tensor) const {
  const ScanResult verdict = check_finite(tensor);
  bytes_.add(verdict.bytes);
  bytes_scanned_unknown_.add(verdict.bytes);
  if (verdict.skip != Skip::kNone || !verdict.finite) return false;
  bound_cache().record_tightened(tensor, verdict.max_abs);
  return true;
}

double BoundSource::min_value_of(const at::Tensor& tensor) const {
  if (static_cast<int64_t>(tensor.nbytes()) > kMaxScannedForMinimum) return 0;
  if (const auto value = integer_value(tensor)) return std::max(*value, 0.0);
  const auto extremes = smallest_of(tensor);
  return extremes && extremes->value > 0 ? extremes->value : 0;
}

double BoundSource::min_abs_of(const at::Tensor& tensor) const {
  if (static_cast<int64_t>(tensor.nbytes()) > kMaxScannedForMinimum) return 0;
  if (const auto value = integer_value(tensor)) return std::abs(*value);
  const auto extremes = smallest_of(tensor);
  return extremes ? extremes->magnitude : 0;
}

}  // namespace torchnan
