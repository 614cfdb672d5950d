// Scans that are launched together.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "device/event.h"
#include "device/scanner.h"

namespace torchnan {

// Scans for one launch on one device. Keeps no tensor alive.
class ScanList {
 public:
  ScanList() { clear(); }
  ScanList(const ScanList&) = delete;
  ScanList& operator=(const ScanList&) = delete;

  bool is_empty() const { return table_.entries == 0 && strided_.empty(); }
  bool is_full() const { return table_.entries == cuda::kMaxEntries || strided_.size() == kMaxStrided; }
  void clear() {
    table_.entries = 0;
    table_.first_chunk[0] = 0;
    strided_.clear();
  }

  // Adds a scan; numbers must increase. Returns false, and does nothing, if the tensor has too many dimensions to be
  // scanned, or the list is full.
  bool add(const at::Tensor& tensor, EventNumber number, uint64_t limit);

  // Moves the contiguous tensors for whose index `is_wanted` returns true to an empty list.
  template <typename IsWanted>
  void move_to(ScanList& other, IsWanted&& is_wanted) {
    other.first_ = first_;
    for (uint32_t i = 0; i < table_.entries; ++i) {
      if (is_wanted(i) && cuda::add(other.table_, table_.entry[i]))
        other.storages_[other.table_.entries - 1] = storages_[i];
    }
    clear();
  }

  // Queues the scans on the stream, and removes them from the list. Throws std::runtime_error if the device refuses
  // one, which then stays in the list with the ones after it.
  void launch(const Scanner& scanner, void* stream);

  // Calls `visit` with the number of each scan in the list.
  template <typename Visit>
  void for_each_number(Visit&& visit) const {
    for (uint32_t i = 0; i < table_.entries; ++i) visit(first_ + table_.entry[i].event_offset);
    for (const StridedScan& one : strided_) visit(one.number);
  }

 private:
  static constexpr size_t kMaxStrided = 8;

  struct StridedScan {
    cuda::StridedEntry entry;
    const c10::StorageImpl* storage;
    EventNumber number;
  };

  EventNumber first_ = 0;
  cuda::Table table_;                                                // 4 KiB, so not initialized for every operation
  std::array<const c10::StorageImpl*, cuda::kMaxEntries> storages_;  // of its entries
  c10::SmallVector<StridedScan, 1> strided_;
};

// Scans of new tensors on the default stream of a device, which wait to be launched together. Keeps their storages
// alive until then, and no longer: after the launch, stream order guarantees that the memory is read before it is
// reused. It keeps no tensor: autograd copies a gradient to which there is another reference.
class Batch {
 public:
  static constexpr int64_t kMaxBytes = int64_t{64} << 20;  // the most memory that waiting scans may keep allocated

  using Kept = std::vector<c10::Storage>;

  bool is_empty() const { return kept_.empty(); }

  // Adds a scan of a contiguous tensor; numbers must increase. Returns false, and does nothing, if there is no room.
  bool add(const at::Tensor& tensor, EventNumber number, uint64_t limit);

  // Whether it is time to launch: the batch is full, or keeps too much memory allocated.
  bool is_full() const { return scans_.is_full() || bytes_ >= kMaxBytes; }

  // Whether a scan of this storage is waiting.
  bool holds(const c10::StorageImpl* storage) const;

  // Moves the scans to an empty list, without those whose memory has been given back. Moves the storages that it kept
  // alive to `kept`, for the caller to release without holding a lock: releasing may need the GIL.
  void take(ScanList& scans, Kept& kept);

 private:
  static constexpr size_t kMarks = 1024;
  static size_t mark_of(const c10::StorageImpl* storage) {
    return reinterpret_cast<uintptr_t>(storage) / alignof(std::max_align_t) * 0x9e3779b97f4a7c15ull >> 54;
  }

  ScanList scans_;
  Kept kept_;
  std::bitset<kMarks> marks_;        // hash bits of the kept storages; most other storages have different bits
  std::vector<const void*> memory_;  // the memory of each kept storage, when it was added
  int64_t bytes_ = 0;
};

}  // namespace torchnan
