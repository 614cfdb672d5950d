#include "check/bounds/written_spans.h"

#include <algorithm>
#include <bit>
#include <utility>

#include <c10/util/SmallVector.h>

#include "check/scan/address_hash.h"
#include "check/scan/storage_of.h"

namespace torchnan {
namespace {

struct Span {
  const void* memory = nullptr;
  uintptr_t begin = 0;
  uintptr_t end = 0;
};

bool overlap(const Span& a, const Span& b) { return a.begin < b.end && b.begin < a.end; }

// The memory of a tensor's storage.
Span storage_span_of(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr) return {};
  const void* memory = storage->data_ptr().get();
  const auto start = reinterpret_cast<uintptr_t>(memory);
  return {memory, start, start + storage->nbytes()};
}

// The memory of a tensor; all of its storage if the tensor has gaps.
Span span_of(const at::Tensor& tensor) {
  const Span storage = storage_span_of(tensor);
  if (storage.memory == nullptr || !tensor.is_non_overlapping_and_dense()) return storage;
  const uintptr_t begin = storage.begin + static_cast<uintptr_t>(tensor.storage_offset()) * tensor.itemsize();
  return {storage.memory, begin, begin + tensor.nbytes()};
}

}  // namespace

bool may_overlap(const at::Tensor& one, const at::Tensor& other) {
  return overlap(storage_span_of(one), storage_span_of(other)) && overlap(span_of(one), span_of(other));
}

void WrittenSpans::begin(size_t count) {
  ++call_;
  if (slots_.size() < 2 * count) slots_.assign(std::bit_ceil(2 * count), {});
}

void WrittenSpans::add(const at::Tensor& tensor) noexcept {
  const Span span = span_of(tensor);
  if (span.memory == nullptr) return;
  Slot& slot = slots_[slot_of(span.memory)];
  const bool is_first = slot.call != call_;
  slot = {call_, span.memory, is_first ? span.begin : std::min(slot.begin, span.begin),
          is_first ? span.end : std::max(slot.end, span.end)};
}

bool WrittenSpans::may_overlap(const at::Tensor& tensor) const noexcept {
  const void* memory = storage_span_of(tensor).memory;
  if (memory == nullptr) return false;
  const Slot& slot = slots_[slot_of(memory)];
  return slot.call == call_ && overlap(span_of(tensor), {memory, slot.begin, slot.end});
}

// Returns the slot of this memory, or a free one; there is always a free slot.
size_t WrittenSpans::slot_of(const void* memory) const noexcept {
  const size_t last = slots_.size() - 1;
  size_t i = hash_of_address(memory) & last;
  while (slots_[i].call == call_ && slots_[i].memory != memory) i = (i + 1) & last;
  return i;
}

bool may_overlap_itself(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return false;
  c10::SmallVector<std::pair<int64_t, int64_t>, 5> steps;  // stride and size
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1) steps.emplace_back(tensor.stride(d), tensor.size(d));
  }
  std::sort(steps.begin(), steps.end());
  int64_t span = 1;
  for (const auto& [stride, size] : steps) {
    if (stride < span) return true;
    span += (size - 1) * stride;
  }
  return false;
}

}  // namespace torchnan
