#include "device/batch.h"

#include <algorithm>
#include <iterator>
#include <stdexcept>

#include "scan/float_format.h"

namespace torchnan {
namespace {

cuda::Entry entry_of(const at::Tensor& tensor, uint64_t limit, bool track_max_finite) {
  const FloatFormat format = *float_format(tensor.scalar_type());
  cuda::Entry entry{};
  entry.data = tensor.const_data_ptr();
  entry.words = static_cast<uint64_t>(tensor.numel()) * format.words_per_element;
  entry.limit = limit;
  entry.encoding = *encoding_of(tensor.scalar_type());
  entry.track_max_finite = track_max_finite;
  return entry;
}

// Runs are the two words of a complex element, or else the last dimension.
bool fill(cuda::StridedEntry& strided, const at::Tensor& tensor) {
  const int words = float_format(tensor.scalar_type())->words_per_element;
  const int64_t last = tensor.dim() - 1;
  const bool runs_along_last = words == 1;
  strided.entry.words = static_cast<uint64_t>(runs_along_last ? tensor.size(last) : words);
  strided.run_stride = static_cast<uint64_t>(runs_along_last ? tensor.stride(last) : 1);
  strided.dims = 0;
  for (int64_t d = 0; d < (runs_along_last ? last : last + 1); ++d) {
    if (tensor.size(d) == 1) continue;
    if (strided.dims == cuda::kMaxDims) return false;
    strided.size[strided.dims] = static_cast<uint64_t>(tensor.size(d));
    strided.stride[strided.dims++] = tensor.stride(d) * words;
  }
  return true;
}

}  // namespace

bool Batch::add(const at::Tensor& tensor, EventNumber number, uint64_t limit, bool track_max_finite) {
  cuda::Entry entry = entry_of(tensor, limit, track_max_finite);
  if (!tensor.is_non_overlapping_and_dense()) {
    cuda::StridedEntry strided{};
    strided.entry = entry;
    if (!fill(strided, tensor)) return false;
    scanner_.scan(strided, number, stream_);
    return true;
  }
  if (is_empty()) first_ = number;
  entry.event_offset = static_cast<uint32_t>(number - first_);
  if (!cuda::add(table_, entry)) return false;
  kept_.push_back(tensor);
  bytes_ += static_cast<int64_t>(tensor.storage().nbytes());
  return true;
}

bool Batch::holds(const c10::StorageImpl* storage) const {
  return std::any_of(kept_.begin(), kept_.end(),
                     [&](const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl() == storage; });
}

void Batch::launch(Kept& kept) {
  if (is_empty()) return;
  struct EmptyAtLast {
    cuda::Table& table;
    ~EmptyAtLast() { table.entries = 0; }
  } const empty_at_last{table_};
  if (kept.empty()) {
    kept.swap(kept_);  // and its memory
  } else {
    std::move(kept_.begin(), kept_.end(), std::back_inserter(kept));
    kept_.clear();
  }
  bytes_ = 0;
  scanner_.scan(table_, first_, stream_);
}

}  // namespace torchnan
