#include "device/journal.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "check/operators/op_plan.h"
#include "check/scan/address_hash.h"
#include "check/scan/storage_of.h"

namespace torchnan {

Journal::Journal() : events_(new Event[kEvents]), buckets_(new Bucket[kStorages / kWays]) {}

Event& Journal::add() {
  if (next_ % cuda::kSlots == kRotatingSlots) next_ += kCaptured;
  Event& event = events_[ordinal_of(next_) % kEvents];
  static_cast<EventFacts&>(event) = {};
  event.number = next_++;
  return event;
}

Event* Journal::add_captured() {
  if (captured_.size() == kCaptured) return nullptr;
  const EventNumber number = kFirstCaptured + captured_.size();
  captured_.emplace_back().number = number;
  return &captured_.back();
}

EventNumber Journal::oldest() const {
  const uint64_t next = ordinal_of(next_);
  if (next <= kEvents) return 1;
  const uint64_t oldest = next - kEvents;
  return oldest / kRotatingSlots * cuda::kSlots + oldest % kRotatingSlots;
}

const Event* Journal::find(EventNumber number) const {
  if (number >= kFirstCaptured) {
    const size_t index = number - kFirstCaptured;
    return index < captured_.size() ? &captured_[index] : nullptr;
  }
  const Event& event = events_[ordinal_of(number) % kEvents];
  return number != 0 && event.number == number ? &event : nullptr;
}

Event* Journal::find(EventNumber number) { return const_cast<Event*>(static_cast<const Journal*>(this)->find(number)); }

void Journal::forget_scan(EventNumber number) {
  Event* const event = find(number);
  if (event == nullptr) return;
  event->scanner = nullptr;
  event->is_proved = event->is_rescanned = false;
  event->assumed = std::numeric_limits<double>::infinity();
  event->bound = Bound();
}

Journal::Bucket& Journal::bucket_of(const c10::StorageImpl* storage) const {
  return buckets_[hash_of_address(storage) % (kStorages / kWays)];
}

// Finds the entry by the address. A weak reference keeps another storage from getting the same address.
Journal::Entry* Journal::find_entry(const c10::StorageImpl* storage) const {
  for (Entry& entry : bucket_of(storage)) {
    if (entry.key == storage) return &entry;
  }
  return nullptr;
}

EventNumber Journal::last_event(const at::Tensor& tensor) const { return last_event(storage_of(tensor)); }

EventNumber Journal::last_event(const c10::StorageImpl* storage) const {
  const Entry* entry = find_entry(storage);
  return entry == nullptr ? 0 : entry->last;
}

EventNumber Journal::newest_event(const c10::StorageImpl* storage) const {
  const Entry* entry = find_entry(storage);
  return entry == nullptr ? 0 : entry->newest;
}

bool Journal::has_waited(const c10::StorageImpl* storage) const {
  const Event* event = find(newest_event(storage));
  for (size_t parts = 1; event != nullptr && parts <= kMaxParts; ++parts) {
    if (event->has_waited) return true;
    if (event->tensor.covers && event->type != EventType::kArgument) return false;
    event = find(event->previous);
  }
  return event != nullptr;
}

bool Journal::is_live(const Event& event) const {
  const Entry* entry = find_entry(event.tensor.storage);
  if (entry == nullptr || entry->storage.expired()) return false;
  for (const Event* last = find(entry->last); last != nullptr; last = find(last->previous)) {
    if (last->number == event.number) return true;
  }
  return false;
}

// A new entry replaces that of a freed storage, or the one written longest ago.
Journal::Entry& Journal::entry_for(const c10::Storage& storage) {
  const c10::StorageImpl* key = storage.unsafeGetStorageImpl();
  if (Entry* known = find_entry(key)) return *known;
  Bucket& bucket = bucket_of(key);
  auto* entry = std::find_if(bucket.begin(), bucket.end(), [](const Entry& one) { return one.storage.expired(); });
  if (entry == bucket.end()) {
    entry =
        std::min_element(bucket.begin(), bucket.end(), [](const Entry& a, const Entry& b) { return a.last < b.last; });
  }
  replaced_[next_replaced_++ % replaced_.size()] = std::exchange(*entry, Entry{storage.getWeakStorageImpl(), key});
  return *entry;
}

void Journal::set_last_event(const at::Tensor& tensor, EventNumber number) {
  Entry& entry = entry_for(tensor.storage());
  // A graph writes there again at every replay, which torchnan cannot see.
  if (entry.last >= kFirstCaptured && number < kFirstCaptured) entry.exported = true;
  Event* const event = entry.stale ? find(number) : nullptr;
  if (event != nullptr) event->begins_anew = true;
  entry.last = entry.newest = number;
  entry.stale = entry.exported;
}

// A captured scan sees nothing before its graph is replayed.
void Journal::add_scanned_part(const at::Tensor& tensor, Event& event) {
  Entry* const entry = find_entry(storage_of(tensor));
  if (entry == nullptr || entry->exported || event.number >= kFirstCaptured) return;
  event.begins_anew = entry->stale;
  entry->newest = event.number;
  entry->stale = false;
}

// A captured event happens again, unlike the copy.
void Journal::copy_last_event(const at::Tensor& tensor, const at::Tensor& copy) {
  const Entry* known = find_entry(storage_of(tensor));
  if (known == nullptr) return;
  const EventNumber last = known->last;
  const bool is_stale = known->stale || last >= kFirstCaptured;
  Entry& copied = entry_for(copy.storage());
  copied.last = copied.newest = last;
  copied.stale = is_stale;
}

Journal::RecordedKnowledge Journal::look_up(const at::Tensor& tensor) const {
  const Entry* entry = find_entry(storage_of(tensor));
  if (entry == nullptr) return {};
  RecordedKnowledge known;
  known.last = entry->last;
  const Event* event = find(entry->last);
  if (event == nullptr) return known;
  known.intended = event->intended;
  if (entry->stale) return known;
  if (!event->tensor.covers || entry->newest != entry->last) {
    look_up_parts(tensor, *entry, known);
    return known;
  }
  known.is_alone = true;
  known.is_reported = is_seen(event);
  if (event->tensor.dtype != tensor.scalar_type()) return known;
  known.bound = event->bound;
  if (event->type == EventType::kResult) known.maker = event->plan;
  if (entry->last < kFirstCaptured && is_seen(event)) known.write = entry->last;
  return known;
}

// Follows the events on the storage back until they have written or scanned all of the tensor.
void Journal::look_up_parts(const at::Tensor& tensor, const Entry& entry, RecordedKnowledge& known) const {
  const TensorSnapshot place(tensor);
  const auto all = static_cast<int64_t>(tensor.storage().nbytes());
  const ByteSpan wanted = place.covers ? ByteSpan{0, all} : place.span();
  ByteSpan seen;  // without gaps
  Bound bound;
  NonfiniteKinds intended;
  size_t found = 0;
  const Event* event = find(entry.newest);
  for (size_t parts = 0; event != nullptr && parts < kMaxParts; ++parts) {
    const ByteSpan span = event->tensor.span();
    if (span.overlaps(wanted)) {
      if (++found == 1) {
        known.last = event->number;
        known.intended = {};
      }
      if (!is_seen(event)) return;
      const Bound own = event->tensor.dtype == place.dtype ? event->bound : Bound();
      bound = found == 1 ? own : bound.joined(own);
      intended |= event->intended;
      const bool has_all = event->tensor.has_place_of(place);
      if (has_all || event->tensor.fills_span()) {
        if (seen.begin == seen.end) {
          seen = span;
        } else if (span.begin <= seen.end && seen.begin <= span.end) {
          seen = {std::min(seen.begin, span.begin), std::max(seen.end, span.end)};
        }
      }
      if (has_all || seen.contains(wanted)) {
        known.is_alone = found == 1;
        known.is_reported = true;
        known.bound = bound;
        known.intended = intended;
        if (!known.is_alone || event->tensor.dtype != place.dtype) return;
        if (event->type == EventType::kResult) known.maker = event->plan;
        if (event->number < kFirstCaptured) known.write = event->number;
        return;
      }
    }
    if (event->begins_anew) return;
    event = find(event->previous);
  }
}

bool Journal::RecordedKnowledge::is_made_by(std::string_view op) const {
  return maker != nullptr && maker->name == op && bound.known();
}

void Journal::mark_stale(const at::Tensor& tensor) { mark_stale(*storage_of(tensor)); }

void Journal::mark_stale(const c10::StorageImpl& storage) {
  if (Entry* entry = find_entry(&storage)) entry->stale = true;
}

void Journal::record_exported(const c10::Storage& storage) {
  Entry& entry = entry_for(storage);
  entry.stale = entry.exported = true;
}

void Journal::forget(const at::Tensor& tensor) {
  if (Entry* entry = find_entry(storage_of(tensor))) *entry = Entry();
}

// Numbers continue: slots and captured graphs have the old ones.
void Journal::forget_all() {
  for (size_t i = 0; i < kEvents; ++i) events_[i] = Event();
  for (size_t i = 0; i < kStorages / kWays; ++i) buckets_[i] = Bucket();
}

WeakTensor Journal::find_tensor(const Event& event) const {
  const Entry* entry = find_entry(event.tensor.storage);
  if (entry == nullptr || entry->last != event.number || !event.tensor.has_shape) return {};
  return {entry->storage, event.tensor};
}

WeakTensor Journal::find_shared_tensor(const Event& event) const {
  const Entry* entry = find_entry(event.tensor.storage);
  if (entry == nullptr || !event.tensor.has_shape) return {};
  const Event* last = find(entry->last);
  while (last != nullptr && last->number != event.number && last->type == EventType::kArgument) {
    last = find(last->previous);
  }
  return last != nullptr && last->number == event.number ? WeakTensor(entry->storage, event.tensor) : WeakTensor();
}

// The storage may have been emptied, or have grown, meanwhile: then its old memory belongs to another one.
at::Tensor WeakTensor::lock() const {
  auto storage = storage_.lock();
  if (!storage || storage->data() != snapshot_.memory || storage->data() == nullptr) return {};
  const c10::IntArrayRef sizes = snapshot_.sizes();
  const c10::IntArrayRef strides = snapshot_.strides();
  const caffe2::TypeMeta dtype = c10::scalarTypeToTypeMeta(snapshot_.dtype);
  const size_t end = at::detail::computeStorageNbytes(sizes, strides, dtype.itemsize(), snapshot_.offset);
  if (end > storage->nbytes()) return {};
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), snapshot_.keys, dtype);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, snapshot_.offset);
  return tensor;
}

}  // namespace torchnan
