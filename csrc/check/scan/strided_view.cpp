#include "check/scan/strided_view.h"

#include <algorithm>

namespace torchnan {

StridedView::StridedView(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  c10::SmallVector<Dim, 5> dims;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1 && strides[d] != 0) dims.push_back({sizes[d], strides[d]});
  }
  std::sort(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.stride < b.stride; });
  if (dims.empty()) return;

  inner_stride_ = dims[0].stride;
  run_length_ = dims[0].size;
  for (size_t d = 1; d < dims.size(); ++d) {
    const bool continues_run = outer_.empty() && dims[d].stride == inner_stride_ * run_length_;
    if (continues_run) {
      run_length_ *= dims[d].size;
    } else if (!outer_.empty() && dims[d].stride == outer_.back().stride * outer_.back().size) {
      outer_.back().size *= dims[d].size;
    } else {
      outer_.push_back(dims[d]);
    }
  }
}

int64_t StridedView::runs() const {
  int64_t runs = 1;
  for (const Dim& dim : outer_) runs *= dim.size;
  return runs;
}

int64_t StridedView::offset_of_run(int64_t run) const {
  int64_t offset = 0;
  for (const Dim& dim : outer_) {
    offset += run % dim.size * dim.stride;
    run /= dim.size;
  }
  return offset;
}

}  // namespace torchnan
