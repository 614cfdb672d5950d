// The last events on devices, and for each storage the event that last wrote it.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include <torchnan/export.h>

#include "device/cuda/scan_table.h"
#include "device/event.h"

namespace torchnan {

// A recorded tensor, whose memory may be given back at any time.
class TORCHNAN_API WeakTensor {
 public:
  WeakTensor() = default;
  WeakTensor(c10::weak_intrusive_ptr<c10::StorageImpl> storage, const TensorSnapshot& snapshot)
      : storage_(std::move(storage)), snapshot_(snapshot) {}

  // Returns the tensor if its memory is still at the same address; else an undefined one. Needs the GIL if Python
  // references the storage, so the caller must not hold a lock.
  at::Tensor lock() const;

  const TensorSnapshot& place() const { return snapshot_; }

 private:
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_{c10::intrusive_ptr<c10::StorageImpl>()};
  TensorSnapshot snapshot_;
};

// Bounded: the oldest events are forgotten. Not thread-safe.
//
// Events of a capture happen again with every replay of the graph. They have separate numbers, above all others, and
// are kept. Their slots are the last quarter of a scanner's.
class TORCHNAN_API Journal {
 public:
  static constexpr size_t kEvents = 3 << 13;  // so many that their slots have not been cleared yet
  static constexpr size_t kCaptured = 1 << 14;
  static constexpr uint64_t kRotatingSlots = cuda::kSlots - kCaptured;
  static constexpr EventNumber kFirstCaptured = (EventNumber{1} << 62) + kRotatingSlots;
  static constexpr size_t kStorages = 1 << 16;
  // the most events on parts of a storage that are followed
  static constexpr size_t kMaxParts = 64;

  Journal();

  // Returns the number of the next event, which gives its slot in the ring.
  EventNumber next() const { return next_; }
  EventNumber oldest() const;  // the oldest event that is not forgotten

  // Returns an event whose context, tensor and inputs the caller has to set. The second returns null if there is no
  // more room.
  Event& add();
  Event* add_captured();
  const std::vector<Event>& captured() const { return captured_; }

  // Whether an event is in the past and forgotten.
  bool is_evicted(EventNumber number) const { return number != 0 && number < oldest(); }

  // Returns null if the event is forgotten, or has not happened yet.
  const Event* find(EventNumber number) const;

  // Returns the event whose values this storage holds; 0 if no write was observed.
  EventNumber last_event(const at::Tensor& tensor) const;
  EventNumber last_event(const c10::StorageImpl* storage) const;  // also for a freed storage
  // Whether the scan of a value that a storage holds has waited for a batch.
  bool has_waited(const c10::StorageImpl* storage) const;
  void set_last_event(const at::Tensor& tensor, EventNumber number);
  void copy_last_event(const at::Tensor& tensor, const at::Tensor& copy);  // to one that has copied its values
  void forget(const at::Tensor& tensor);
  void forget_all();

  // Records that an event has scanned a part of a storage that no operation was seen to write.
  void add_scanned_part(const at::Tensor& tensor, Event& event);
  // Returns the last event on a storage that wrote or scanned any part of it.
  EventNumber newest_event(const c10::StorageImpl* storage) const;

  // The known facts about a tensor.
  struct RecordedKnowledge {
    EventNumber last = 0;           // the last event that wrote or scanned any of it; 0 if there is none
    bool is_alone = false;          // whether that event wrote or scanned all of it
    bool is_reported = false;       // whether events have written or scanned all of it
    Bound bound;                    // of its values; none if they were written as another dtype
    const OpPlan* maker = nullptr;  // the operator that wrote all of it, as this dtype
    EventNumber write = 0;          // the event that wrote all of its values, as this dtype; 0 for a captured one
    NonfiniteKinds intended;        // as in the event

    // The write number, at least 2; 0 if unknown or disproved.
    uint64_t write_number() const { return write != 0 && bound.known() ? write + 1 : 0; }
    bool is_made_by(std::string_view op) const;
  };
  RecordedKnowledge look_up(const at::Tensor& tensor) const;

  // Records that others may have written there since the last event.
  void mark_stale(const at::Tensor& tensor);
  void mark_stale(const c10::StorageImpl& storage);
  // Records that others may write there at any time from now on.
  void record_exported(const c10::Storage& storage);

  Event* find(EventNumber number);

  // Records that an event is not scanned after all.
  void forget_scan(EventNumber number);

  // Whether the storage of the event still exists and holds its values.
  bool is_live(const Event& event) const;

  // Returns the tensor of an event if its memory was not written since then, else an empty one.
  WeakTensor find_tensor(const Event& event) const;
  // The same, if others may have written there, but nobody was seen to.
  WeakTensor find_shared_tensor(const Event& event) const;

 private:
  // so many that no storage in use is replaced, even with several thousand of them
  static constexpr size_t kWays = 8;

  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
    const c10::StorageImpl* key = nullptr;
    EventNumber last = 0;
    EventNumber newest = 0;  // the same, or a later scan of a part
    bool stale = false;
    bool exported = false;
  };
  using Bucket = std::array<Entry, kWays>;

  // The ordinal of an event, without the numbers that are skipped.
  static constexpr uint64_t ordinal_of(EventNumber number) {
    return number / cuda::kSlots * kRotatingSlots + number % cuda::kSlots;
  }

  Bucket& bucket_of(const c10::StorageImpl* storage) const;
  Entry* find_entry(const c10::StorageImpl* storage) const;
  Entry& entry_for(const c10::Storage& storage);
  void look_up_parts(const at::Tensor& tensor, const Entry& entry, RecordedKnowledge& known) const;

  std::unique_ptr<Event[]> events_;
  std::vector<Event> captured_;
  std::unique_ptr<Bucket[]> buckets_;
  // The entries that were replaced last. They keep the address of their storage from being used again at once: the next
  // storage would get it, and so the same bucket, and so on until the bucket is full of storages in use.
  std::array<Entry, 1024> replaced_;
  size_t next_replaced_ = 0;
  EventNumber next_ = 1;
};

}  // namespace torchnan
