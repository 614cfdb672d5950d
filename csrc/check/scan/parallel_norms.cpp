#include "check/scan/parallel_norms.h"

#include <algorithm>
#include <cstring>

#include <ATen/Parallel.h>

#include "check/scan/float_format.h"
#include "check/scan/strided_view.h"

namespace torchnan {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 17;    // per task
constexpr int64_t kGatherBytes = int64_t{1} << 14;   // for memory that is not contiguous: stays in the cache
constexpr int64_t kWorthSharing = int64_t{1} << 20;  // per thread

template <int64_t kBytes>
void gather(const char* base, const StridedView& view, int64_t first, int64_t count, char* out) {
  const int64_t stride = view.inner_stride() * kBytes;
  while (count > 0) {
    const int64_t skipped = first % view.run_length();
    const int64_t here = std::min(count, view.run_length() - skipped);
    const char* from = base + view.offset_of_run(first / view.run_length()) * kBytes + skipped * stride;
    for (int64_t i = 0; i < here; ++i) std::memcpy(out + i * kBytes, from + i * stride, kBytes);
    out += here * kBytes;
    first += here;
    count -= here;
  }
}

// The elements of a tensor in memory, in the order of its view.
class Source {
 public:
  explicit Source(const at::Tensor& tensor)
      : base_(static_cast<const char*>(tensor.const_data_ptr())),
        dtype_(tensor.scalar_type()),
        format_(*float_format(dtype_)),
        view_(tensor.sizes(), tensor.strides()),
        elements_(view_.run_length() * view_.runs()),
        copies_(tensor.numel() / elements_) {}

  int64_t elements() const { return elements_; }
  int64_t element_bytes() const { return format_.element_bytes(); }
  int64_t copies() const { return copies_; }  // of each element, if the tensor is expanded

  NormAndMax norm_and_max(int64_t first, int64_t count) const {
    if (view_.inner_stride() == 1 && view_.run_length() == elements_) {
      return scan_elements(base_ + first * element_bytes(), count);
    }
    NormAndMax norm_and_max;
    alignas(64) char gathered[kGatherBytes];
    const int64_t max_elements = kGatherBytes / element_bytes();
    for (int64_t i = 0; i < count; i += max_elements) {
      const int64_t n = std::min(max_elements, count - i);
      gather_elements(first + i, n, gathered);
      norm_and_max += scan_elements(gathered, n);
    }
    return norm_and_max;
  }

 private:
  NormAndMax scan_elements(const char* data, int64_t count) const {
    return scan_norm(data, count * format_.words_per_element, dtype_);
  }

  void gather_elements(int64_t first, int64_t count, char* out) const {
    switch (element_bytes()) {
      case 1:
        return gather<1>(base_, view_, first, count, out);
      case 2:
        return gather<2>(base_, view_, first, count, out);
      case 4:
        return gather<4>(base_, view_, first, count, out);
      case 8:
        return gather<8>(base_, view_, first, count, out);
      default:
        return gather<16>(base_, view_, first, count, out);
    }
  }

  const char* base_;
  c10::ScalarType dtype_;
  FloatFormat format_;
  StridedView view_;
  int64_t elements_;
  int64_t copies_;
};

// A part of a source that one thread scans. Its limits depend only on the source.
struct Chunk {
  const Source* source;
  size_t tensor;
  int64_t first;
  int64_t elements;
  int64_t bytes_before;  // in the chunks before this one
};

class Plan {
 public:
  explicit Plan(c10::ArrayRef<at::Tensor> tensors) {
    sources_.reserve(tensors.size());
    chunks_.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].numel() == 0) continue;
      add(sources_.emplace_back(tensors[i]), i);
    }
  }

  int64_t bytes() const { return bytes_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }

  // Returns the first chunk that begins at this byte or later.
  size_t chunk_from(int64_t byte) const {
    const auto begins_before = [](const Chunk& chunk, int64_t at) { return chunk.bytes_before < at; };
    return static_cast<size_t>(std::lower_bound(chunks_.begin(), chunks_.end(), byte, begins_before) - chunks_.begin());
  }

 private:
  void add(const Source& source, size_t tensor) {
    const int64_t max_elements = kChunkBytes / source.element_bytes();
    for (int64_t first = 0; first < source.elements(); first += max_elements) {
      const int64_t elements = std::min(max_elements, source.elements() - first);
      chunks_.push_back({&source, tensor, first, elements, bytes_});
      bytes_ += elements * source.element_bytes();
    }
  }

  std::vector<Source> sources_;
  std::vector<Chunk> chunks_;
  int64_t bytes_ = 0;
};

}  // namespace

std::vector<NormAndMax> norms_of(c10::ArrayRef<at::Tensor> tensors) {
  const Plan plan(tensors);
  const std::vector<Chunk>& chunks = plan.chunks();
  std::vector<NormAndMax> of_chunks(chunks.size());
  at::parallel_for(0, plan.bytes(), kWorthSharing, [&](int64_t begin, int64_t end) {
    const size_t last = plan.chunk_from(end);
    for (size_t c = plan.chunk_from(begin); c < last; ++c) {
      of_chunks[c] = chunks[c].source->norm_and_max(chunks[c].first, chunks[c].elements);
    }
  });
  std::vector<NormAndMax> extents(tensors.size());
  for (size_t c = 0; c < chunks.size(); ++c)
    extents[chunks[c].tensor] += of_chunks[c].times(chunks[c].source->copies());
  return extents;
}

}  // namespace torchnan
