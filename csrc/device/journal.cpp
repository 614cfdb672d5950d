#include "device/journal.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include "scan/float_format.h"
#include "scan/tensor_scan.h"
#include "origin/arguments.h"

namespace torchnan {

TensorSnapshot::TensorSnapshot(const at::Tensor& of)
    : storage(of.storage().unsafeGetStorageImpl()),
      keys(of.key_set()),
      device(of.device()),
      dtype(of.scalar_type()),
      is_parameter(torchnan::is_parameter(of)),
      offset(of.storage_offset()) {
  has_shape = static_cast<size_t>(of.dim()) <= kMaxDims;
  if (!has_shape) return;
  dims = static_cast<uint8_t>(of.dim());
  std::copy(of.sizes().begin(), of.sizes().end(), sizes.begin());
  std::copy(of.strides().begin(), of.strides().end(), strides.begin());
}

Journal::Journal() : events_(new Event[kEvents]), buckets_(new Bucket[kStorages / kWays]) {}

Site Event::site() const {
  Site site;
  site.live = live;
  site.forward = forward;
  if (node != nullptr) site.node = *node;
  site.node_execution_id = node_execution_id;
  site.grad_mode = grad_mode;
  site.thread = thread;
  site.step = step;
  return site;
}

uint64_t Event::max_intended() const {
  const FloatFormat format = *float_format(tensor.dtype);
  return (intended.inf() ? format.first_nan : format.infinity) - 1;
}

uint64_t Event::limit() const {
  return std::isfinite(assumed) ? std::min(max_intended(), encode_magnitude(assumed, tensor.dtype)) : max_intended();
}

Event& Journal::add() {
  if (next_ % cuda::kSlots == kRotatingSlots) next_ += kCaptured;
  Event& event = events_[next_ % kEvents];
  event = Event();
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
  const EventNumber beyond = kEvents + kCaptured;  // numbers that are left out count
  return next_ > beyond ? next_ - beyond : 1;
}

const Event* Journal::find(EventNumber number) const {
  if (number >= kFirstCaptured) {
    const size_t place = number - kFirstCaptured;
    return place < captured_.size() ? &captured_[place] : nullptr;
  }
  const Event& event = events_[number % kEvents];
  return number != 0 && event.number == number ? &event : nullptr;
}

Event* Journal::find(EventNumber number) { return const_cast<Event*>(static_cast<const Journal*>(this)->find(number)); }

Journal::Bucket& Journal::bucket_of(const c10::StorageImpl* storage) const {
  const auto address = reinterpret_cast<uintptr_t>(storage) / alignof(std::max_align_t);
  return buckets_[(address * 0x9e3779b97f4a7c15ull >> 32) % (kStorages / kWays)];
}

// Whose address it is: a weak reference keeps it from being another's.
Journal::Entry* Journal::find_entry(const c10::StorageImpl* storage) const {
  for (Entry& entry : bucket_of(storage)) {
    if (entry.key == storage) return &entry;
  }
  return nullptr;
}

EventNumber Journal::last_event(const at::Tensor& tensor) const {
  return last_event(tensor.storage().unsafeGetStorageImpl());
}

EventNumber Journal::last_event(const c10::StorageImpl* storage) const {
  const Entry* entry = find_entry(storage);
  return entry == nullptr ? 0 : entry->last;
}

bool Journal::is_live(const Event& event) const {
  const Entry* entry = find_entry(event.tensor.storage);
  if (entry == nullptr || entry->storage.expired()) return false;
  for (const Event* last = find(entry->last); last != nullptr; last = find(last->previous)) {
    if (last->number == event.number) return true;
  }
  return false;
}

void Journal::set_last_event(const at::Tensor& tensor, EventNumber number) {
  const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  Entry* entry = find_entry(storage);
  if (entry == nullptr) {  // in the place of a dead one, or of the one that was written longest ago
    Bucket& bucket = bucket_of(storage);
    const auto rank = [](const Entry& one) { return one.storage.expired() ? 0 : one.last; };
    entry = std::min_element(bucket.begin(), bucket.end(),
                             [&](const Entry& a, const Entry& b) { return rank(a) < rank(b); });
    *entry = Entry{tensor.storage().getWeakStorageImpl(), storage};
  }
  entry->last = number;
  entry->stale = entry->exported;
}

Bound Journal::bound_of(const at::Tensor& tensor) const {
  const Entry* entry = find_entry(tensor.storage().unsafeGetStorageImpl());
  const Event* event = entry == nullptr || entry->stale ? nullptr : find(entry->last);
  return event == nullptr || event->tensor.dtype != tensor.scalar_type() ? Bound{} : event->bound;
}

void Journal::mark_stale(const at::Tensor& tensor) {
  if (Entry* entry = find_entry(tensor.storage().unsafeGetStorageImpl())) entry->stale = true;
}

void Journal::record_exported(const at::Tensor& tensor) {
  if (find_entry(tensor.storage().unsafeGetStorageImpl()) == nullptr) set_last_event(tensor, 0);
  Entry* entry = find_entry(tensor.storage().unsafeGetStorageImpl());
  entry->stale = entry->exported = true;
}

bool Journal::reports_every(const at::Tensor& tensor) const {
  const Entry* entry = find_entry(tensor.storage().unsafeGetStorageImpl());
  if (entry == nullptr || entry->stale) return false;
  const Event* event = find(entry->last);
  for (size_t parts = 1; is_seen(event) && !event->covers; ++parts) {
    if (event->previous == 0 || parts == kMaxParts) return false;
    event = find(event->previous);
  }
  return is_seen(event);
}

void Journal::forget(const at::Tensor& tensor) {
  if (Entry* entry = find_entry(tensor.storage().unsafeGetStorageImpl())) *entry = Entry();
}

// Numbers go on: slots and captured graphs have the old ones.
void Journal::forget_all() {
  for (size_t i = 0; i < kEvents; ++i) events_[i] = Event();
  for (size_t i = 0; i < kStorages / kWays; ++i) buckets_[i] = Bucket();
}

at::Tensor Journal::tensor_of(const Event& event) const {
  const TensorSnapshot& then = event.tensor;
  const Entry* entry = find_entry(then.storage);
  if (entry == nullptr || entry->last != event.number || !then.has_shape) return {};
  auto storage = entry->storage.lock();
  if (!storage) return {};
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), then.keys,
                                                         c10::scalarTypeToTypeMeta(then.dtype));
  const auto dims = static_cast<size_t>(then.dims);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides({then.sizes.data(), dims}, {then.strides.data(), dims},
                                                      then.offset);
  return tensor;
}

}  // namespace torchnan
