#include "device/batch.h"

#include <algorithm>
#include <iterator>

#include "check/scan/float_format.h"
#include "check/scan/storage_of.h"

namespace torchnan {
namespace {

cuda::Entry entry_of(const at::Tensor& tensor, uint64_t limit) {
  const FloatFormat& format = *float_format(tensor.scalar_type());
  cuda::Entry entry{};
  entry.data = static_cast<const char*>(storage_of(tensor)->data()) + tensor.storage_offset() * format.element_bytes();
  entry.words = static_cast<uint64_t>(tensor.numel()) * format.words_per_element;
  entry.limit = limit;
  entry.encoding = *encoding_of(tensor.scalar_type());
  return entry;
}

// A run is the two words of a complex element, or else the last dimension. Repeated elements are read once, and
// dimensions that are adjacent in memory are merged.
bool fill(cuda::StridedEntry& strided, const at::Tensor& tensor) {
  const int words = float_format(tensor.scalar_type())->words_per_element;
  c10::SmallVector<int64_t, 8> sizes;
  c10::SmallVector<int64_t, 8> strides;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) == 1 || tensor.stride(d) == 0) continue;
    if (!sizes.empty() && strides.back() == tensor.size(d) * tensor.stride(d)) {
      sizes.back() *= tensor.size(d);
      strides.back() = tensor.stride(d);
      continue;
    }
    sizes.push_back(tensor.size(d));
    strides.push_back(tensor.stride(d));
  }
  strided.entry.words = static_cast<uint64_t>(words);
  strided.run_stride = 1;
  if (words == 1 && !sizes.empty()) {
    strided.entry.words = static_cast<uint64_t>(sizes.pop_back_val());
    strided.run_stride = static_cast<uint64_t>(strides.pop_back_val());
  }
  if (sizes.size() > cuda::kMaxDims) return false;
  strided.dims = static_cast<uint32_t>(sizes.size());
  for (size_t d = 0; d < sizes.size(); ++d) {
    strided.size[d] = static_cast<uint64_t>(sizes[d]);
    strided.stride[d] = strides[d] * words;
  }
  return true;
}

}  // namespace

bool ScanList::add(const at::Tensor& tensor, EventNumber number, uint64_t limit) {
  const cuda::Entry entry = entry_of(tensor, limit);
  if (!tensor.is_non_overlapping_and_dense()) {
    cuda::StridedEntry strided{};
    strided.entry = entry;
    if (strided_.size() == kMaxStrided || !fill(strided, tensor)) return false;
    strided_.push_back({strided, storage_of(tensor), number});
    return true;
  }
  if (table_.entries == 0) first_ = number;
  if (!cuda::add(table_, entry)) return false;
  table_.entry[table_.entries - 1].event_offset = static_cast<uint32_t>(number - first_);
  storages_[table_.entries - 1] = storage_of(tensor);
  return true;
}

void ScanList::launch(const Scanner& scanner, void* stream) {
  if (table_.entries > 0) scanner.scan(table_, storages_.data(), first_, stream);
  table_.entries = 0;
  while (!strided_.empty()) {
    scanner.scan(strided_.back().entry, strided_.back().storage, strided_.back().number, stream);
    strided_.pop_back();
  }
}

bool Batch::add(const at::Tensor& tensor, EventNumber number, uint64_t limit) {
  if (kept_.empty()) {
    kept_.reserve(cuda::kMaxEntries);
    memory_.reserve(cuda::kMaxEntries);
  }
  if (!scans_.add(tensor, number, limit)) return false;
  const c10::Storage& storage = kept_.emplace_back(tensor.unsafeGetTensorImpl()->unsafe_storage());
  memory_.push_back(storage.data());
  marks_.set(mark_of(storage.unsafeGetStorageImpl()));
  bytes_ += static_cast<int64_t>(storage.nbytes());
  return true;
}

bool Batch::holds(const c10::StorageImpl* storage) const {
  if (!marks_.test(mark_of(storage))) return false;
  return std::any_of(kept_.begin(), kept_.end(),
                     [&](const c10::Storage& kept) { return kept.unsafeGetStorageImpl() == storage; });
}

void Batch::take(ScanList& scans, Kept& kept) {
  scans_.move_to(scans, [this](uint32_t i) { return kept_[i].data() == memory_[i]; });
  memory_.clear();
  marks_.reset();
  bytes_ = 0;
  if (kept.empty()) {
    kept.swap(kept_);  // and releases its memory
  } else {
    std::move(kept_.begin(), kept_.end(), std::back_inserter(kept));
    kept_.clear();
  }
}

}  // namespace torchnan
