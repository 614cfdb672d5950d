// The location of a tensor's elements in a storage.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/DimVector.h>
#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>

#include "origin/elementwise_attribution.h"

namespace torchnan {

// A tensor at an earlier time, without keeping its storage alive.
struct MemoryRegion {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  c10::DispatchKeySet keys;
  at::DimVector sizes;
  at::DimVector strides;
  int64_t offset = 0;  // elements
  int64_t begin = 0;   // bytes: the span of its elements
  int64_t end = 0;
  bool dense = false;
  bool merged = false;  // the hull of several

  explicit MemoryRegion(const at::Tensor& tensor);

  // Whether the tensor has the elements of the region, if it is in the same storage.
  bool is_of(const at::Tensor& tensor) const;

  // Returns the tensor again, in the storage that it was in.
  at::Tensor tensor_in(c10::intrusive_ptr<c10::StorageImpl> storage) const;

  // Moves the region by this many bytes, a multiple of the size of an element.
  void shift(int64_t bytes);

  // Extends the region to the hull of itself and another one of the same storage.
  void merge(const MemoryRegion& other);
};

// Whether two regions of one storage may have an element in common. Columns of one table lie within each other's spans
// without a common element.
bool overlap(const MemoryRegion& a, const MemoryRegion& b);

// Whether all elements of another region of the same storage certainly lie in this one.
bool covers(const MemoryRegion& region, const MemoryRegion& other);

// Finds elements in a region whose larger strides are multiples of the span of the smaller ones: a slice, a transposed
// matrix. In other regions it may miss some.
class NestedStrides {
 public:
  explicit NestedStrides(const MemoryRegion& region);

  // `element` counts elements of the region's dtype, from the begin of the storage.
  bool contains(int64_t element) const;

 private:
  int64_t offset_;
  std::vector<std::pair<int64_t, int64_t>> steps_;  // stride and size, the largest stride first
};

// Whether each non-finite element of a tensor lies in one of these regions of the same storage and dtype. `kinds` are
// those of its elements.
bool lies_within(const at::Tensor& tensor, const ElementKinds& kinds, const std::vector<NestedStrides>& regions);

}  // namespace torchnan
