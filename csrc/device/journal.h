// The last events on devices, and for each storage the event whose values it holds.
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

  // Returns the number of the next event, which gives its slot in the ring.
  EventNumber next() const { return next_; }
  EventNumber oldest() const;  // that is not forgotten
  Event& add();

  // Returns null if there is no more room.
  Event* add_captured();
  const std::vector<Event>& captured() const { return captured_; }

  // Returns null if the event is forgotten, or has not happened.
  const Event* find(EventNumber number) const;

  // Returns the event whose values this storage holds; 0 if nobody has seen it.
  EventNumber last_event(const at::Tensor& tensor) const;
  EventNumber last_event(const c10::StorageImpl* storage) const;  // also if the storage is gone
  void set_last_event(const at::Tensor& tensor, EventNumber number);
  void forget(const at::Tensor& tensor);
  void forget_all();

  // Returns the bound of the values in the memory of a tensor; none if they were written as another dtype.
  Bound bound_of(const at::Tensor& tensor) const;

  // Records that others may have written there since.
  void mark_stale(const at::Tensor& tensor);
  // Records that others may write there at any time from now on.
  void record_exported(const at::Tensor& tensor);
  // Whether the events of a tensor's memory tell of all that is there: somebody has written it, or looked at it.
  bool reports_every(const at::Tensor& tensor) const;

  Event* find(EventNumber number);

  // Whether the storage of the event is still there, and holds values of it.
  bool is_live(const Event& event) const;

  // Returns the tensor of an event if its memory is alive and nobody has written there since, else an undefined one.
  at::Tensor tensor_of(const Event& event) const;

 private:
  static constexpr size_t kWays = 4;
  static constexpr size_t kMaxParts = 8;  // that a memory is written in, to be known without a look

  struct Entry {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};
    const c10::StorageImpl* key = nullptr;
    EventNumber last = 0;
    bool stale = false;
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
