// The memory of a strided tensor as runs of contiguous words.
#pragma once

#include <cstdint>

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

namespace torchnan {

// Sizes and strides in elements, reduced to what must be visited to see every element at least once: dimensions of size
// one and stride zero are dropped, the others sorted by stride and merged where they are dense. The order of the
// elements is lost.
class StridedView {
 public:
  StridedView(c10::IntArrayRef sizes, c10::IntArrayRef strides);

  int64_t run_length() const { return run_length_; }  // elements in one run, inner_stride() apart
  int64_t inner_stride() const { return inner_stride_; }
  int64_t runs() const;
  int64_t offset_of_run(int64_t run) const;  // of the first element, in the order of for_each_run()

  // Calls visit(offset) for each run, with the offset of its first element from that of the tensor; stops and returns
  // false once visit returns false.
  template <typename Visit>
  bool for_each_run(Visit&& visit) const {
    c10::SmallVector<int64_t, 5> index(outer_.size(), 0);
    int64_t offset = 0;
    while (true) {
      if (!visit(offset)) return false;
      size_t d = 0;
      for (; d < outer_.size(); ++d) {
        offset += outer_[d].stride;
        if (++index[d] < outer_[d].size) break;
        offset -= outer_[d].stride * outer_[d].size;
        index[d] = 0;
      }
      if (d == outer_.size()) return true;
    }
  }

 private:
  struct Dim {
    int64_t size;
    int64_t stride;
  };

  int64_t run_length_ = 1;
  int64_t inner_stride_ = 1;
  c10::SmallVector<Dim, 5> outer_;  // smallest stride first
};

}  // namespace torchnan
