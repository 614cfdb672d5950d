// The last events on devices, and which of them each storage holds the values of.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <c10/util/intrusive_ptr.h>

#include <torchnan/export.h>

#include "device/cuda/scan_table.h"
#include "device/event.h"

namespace torchnan {

// Bounded: the oldest events are forgotten. Not for several threads at once.
//
// Events of a capture happen again with every replay of the graph: they have numbers of their own, above all others,
// and are kept. Their slots are the last quarter of a scanner's.
class TORCHNAN_API Journal {
 public:
  static constexpr size_t kEvents = 1 << 14;
  static constexpr size_t kCaptured = 1 << 14;
  static constexpr uint64_t kRotatingSlots = cuda::kSlots - kCaptured;
  static constexpr EventNumber kFirstCaptured = (EventNumber{1} << 62) + kRotatingSlots;
  static constexpr size_t kStorages = 1 << 15;

  Journal();

  // The number of the next event. Its place in the ring is its number's.
  EventNumber next() const { return next_; }
  EventNumber oldest() const;  // that is not forgotten
  Event& add();

  // Null if there is no more room.
  Event* add_captured();
  const std::vector<Event>& captured() const { return captured_; }

  // Null if it is forgotten, or has not been.
  const Event* find(EventNumber number) const;

  // The event whose values this storage holds; 0 if nobody has seen it.
  EventNumber last_event(const at::Tensor& tensor) const;
  EventNumber last_event(const c10::StorageImpl* storage) const;  // also if the storage is gone
  void set_last_event(const at::Tensor& tensor, EventNumber number);
  void forget(const at::Tensor& tensor);
  void forget_all();

  // What is known of the values in the memory of a tensor; nothing, if they were written as another dtype.
  Bound bound_of(const at::Tensor& tensor) const;

  // Others may have written there since.
  void mark_stale(const at::Tensor& tensor);
  // And may do so at any time from now on.
  void record_exported(const at::Tensor& tensor);
  // Whether the events of a tensor's memory tell of all that is there: somebody has written it, or looked at it.
  bool reports_every(const at::Tensor& tensor) const;

  Event* find(EventNumber number);

  // Whether the storage of the event is still there, and holds values of it.
  bool is_there(const Event& event) const;

  // The tensor of an event, if the program still has its memory and nobody has written there since; else undefined.
  at::Tensor tensor_of(const Event& event) const;

 private:
  static constexpr size_t kWays = 4;
  static constexpr size_t kMostParts = 8;  // that a memory is written in, to be known without a look

  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
    const c10::StorageImpl* key = nullptr;
    EventNumber last = 0;
    bool doubtful = false;
    bool exported = false;
  };
  using Bucket = std::array<Entry, kWays>;

  Bucket& bucket_of(const c10::StorageImpl* storage) const;
  Entry* find_entry(const c10::StorageImpl* storage) const;

  std::unique_ptr<Event[]> events_;
  std::vector<Event> captured_;
  std::unique_ptr<Bucket[]> buckets_;
  EventNumber next_ = 1;
};

}  // namespace torchnan
