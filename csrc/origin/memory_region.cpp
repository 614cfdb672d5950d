#include "origin/memory_region.h"

#include <algorithm>
#include <cstddef>

namespace torchnan {
namespace {

// A region as rows of memory: every `stride` elements, from `phase` on, `width` elements. No stride: one row.
struct Rows {
  int64_t stride = 0;
  int64_t phase = 0;
  int64_t width = 1;

  explicit Rows(const MemoryRegion& region) {
    for (size_t d = 0; d < region.sizes.size(); ++d) {
      if (region.sizes[d] > 1) stride = std::max(stride, region.strides[d]);
    }
    for (size_t d = 0; d < region.sizes.size(); ++d) {
      if (region.strides[d] != stride) width += (region.sizes[d] - 1) * region.strides[d];
    }
    phase = stride > 0 ? region.offset % stride : region.offset;
    if (phase + width > stride) *this = Rows(phase);  // wraps into the next row, so there is no pattern
  }

 private:
  explicit Rows(int64_t offset) : phase(offset) {}
};

int64_t element_bytes(const MemoryRegion& region) { return static_cast<int64_t>(c10::elementSize(region.dtype)); }

}  // namespace

MemoryRegion::MemoryRegion(const at::Tensor& tensor)
    : dtype(tensor.scalar_type()),
      keys(tensor.unsafeGetTensorImpl()->key_set()),
      sizes(tensor.sizes()),
      strides(tensor.strides()),
      offset(tensor.storage_offset()),
      dense(tensor.is_non_overlapping_and_dense()) {
  int64_t span = 1;
  for (size_t d = 0; d < sizes.size(); ++d) span += (sizes[d] - 1) * strides[d];
  begin = offset * element_bytes(*this);
  end = begin + span * element_bytes(*this);
}

bool MemoryRegion::is_of(const at::Tensor& tensor) const {
  return !merged && dtype == tensor.scalar_type() && offset == tensor.storage_offset() && tensor.sizes() == sizes &&
         tensor.strides() == strides;
}

at::Tensor MemoryRegion::tensor_in(c10::intrusive_ptr<c10::StorageImpl> storage) const {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), keys,
                                                         c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return tensor;
}

void MemoryRegion::shift(int64_t bytes) {
  offset += bytes / element_bytes(*this);
  begin += bytes;
  end += bytes;
}

void MemoryRegion::merge(const MemoryRegion& other) {
  begin = std::min(begin, other.begin);
  end = std::max(end, other.end);
  offset = begin / element_bytes(*this);
  sizes = {(end - begin) / element_bytes(*this)};
  strides = {1};
  dense = true;
  merged = true;
}

bool overlap(const MemoryRegion& a, const MemoryRegion& b) {
  if (a.end <= b.begin || b.end <= a.begin) return false;
  const Rows in_a(a);
  const Rows in_b(b);
  if (a.dtype != b.dtype || in_a.stride == 0 || in_a.stride != in_b.stride) return true;
  return in_a.phase < in_b.phase + in_b.width && in_b.phase < in_a.phase + in_a.width;
}

bool covers(const MemoryRegion& region, const MemoryRegion& other) {
  if (region.merged) return false;
  if (region.dense && region.begin <= other.begin && other.end <= region.end) return true;
  return region.dtype == other.dtype && region.offset == other.offset && region.sizes == other.sizes &&
         region.strides == other.strides;
}

NestedStrides::NestedStrides(const MemoryRegion& region) : offset_(region.offset) {
  for (size_t d = 0; d < region.sizes.size(); ++d) {
    if (region.sizes[d] > 1 && region.strides[d] > 0) steps_.emplace_back(region.strides[d], region.sizes[d]);
  }
  std::sort(steps_.rbegin(), steps_.rend());
}

bool NestedStrides::contains(int64_t element) const {
  int64_t rest = element - offset_;
  if (rest < 0) return false;
  for (const auto& [stride, size] : steps_) rest -= std::min(rest / stride, size - 1) * stride;
  return rest == 0;
}

bool lies_within(const at::Tensor& tensor, const ElementKinds& kinds, const std::vector<NestedStrides>& regions) {
  std::vector<int64_t> index(static_cast<size_t>(tensor.dim()), 0);
  int64_t element = tensor.storage_offset();
  for (const NonfiniteKinds at_element : kinds) {
    const auto contains = [element](const NestedStrides& one) { return one.contains(element); };
    if (at_element.any() && std::none_of(regions.begin(), regions.end(), contains)) return false;
    for (size_t d = index.size(); d-- > 0;) {
      element += tensor.stride(static_cast<int64_t>(d));
      if (++index[d] < tensor.size(static_cast<int64_t>(d))) break;
      element -= tensor.stride(static_cast<int64_t>(d)) * tensor.size(static_cast<int64_t>(d));
      index[d] = 0;
    }
  }
  return true;
}

}  // namespace torchnan
