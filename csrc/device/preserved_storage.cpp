#include "device/preserved_storage.h"

#include <algorithm>
#include <bit>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include "base/dispatch_key.h"
#include "check/scan/storage_of.h"

namespace torchnan {
namespace {

constexpr size_t kSmallestRoom = 65536;  // sizes of rooms are powers of two, so that they can be used again

}  // namespace

PreservedStorage::PreservedStorage(const at::Tensor& tensor, EventNumber last_event)
    : storage_(tensor.storage().getWeakStorageImpl()),
      scanner_(tensor.is_cpu() ? nullptr : Scanner::of(tensor.device())),
      bytes_(tensor.storage().nbytes()),
      writes_(tensor.unsafeGetTensorImpl()->version_counter()),
      version_(writes_.enabled() ? writes_.current_version() : 0),
      last_event_(last_event),
      is_weight_(tensor.is_leaf() && tensor.requires_grad()) {}

void PreservedStorage::set_room(std::shared_ptr<const ReservedMemory> room, size_t offset) {
  room_ = std::move(room);
  offset_ = offset;
}

bool PreservedStorage::is_unchanged(const Journal& journal) const {
  const bool is_same_version = !writes_.enabled() || writes_.current_version() == version_;
  return is_same_version && journal.last_event(key()) == last_event_;
}

bool PreservedStorage::is_copied() const { return launch_ != 0 && scanner_->has_copied(launch_); }

at::Tensor PreservedStorage::copied(const TensorSnapshot& place) const {
  const c10::impl::ExcludeDispatchKeyGuard unwatched(kInterceptorKey);
  const at::AutoDispatchBelowAutograd no_autograd;
  const at::Tensor copy = at::for_blob(address_of_copy(), {static_cast<int64_t>(bytes_)})
                              .options(at::TensorOptions(place.device).dtype(at::kByte))
                              .target_device(place.device)
                              .make_tensor();
  const at::Tensor memory = at::empty_like(copy);
  memory.copy_(copy);
  TensorSnapshot new_place = place;
  new_place.memory = memory.storage().data();
  return WeakTensor(memory.storage().getWeakStorageImpl(), new_place).lock();
}

std::shared_ptr<PreservedStorage> PreservedStorages::find(const c10::StorageImpl* storage, const Journal& journal) {
  const auto found = watched_.find(storage);
  if (found == watched_.end()) return nullptr;
  auto known = found->second.lock();
  if (known != nullptr && known->is_unchanged(journal)) return known;
  watched_.erase(found);
  return nullptr;
}

// The copy of an earlier launch shows what the device had found by then.
bool PreservedStorages::has_to_be_copied(const PreservedStorage& one) const {
  return one.has_room() && (one.launch_ == 0 || one.explains_until_ < newest_result_);
}

std::vector<PendingCopies> PreservedStorages::before_writes(c10::ArrayRef<const c10::StorageImpl*> storages,
                                                            const Journal& journal) {
  std::vector<PendingCopies> pending;
  const auto add = [&](std::shared_ptr<PreservedStorage> one) {
    one->explains_until_ = newest_result_;
    Scanner* const scanner = one->scanner_;
    auto its = std::find_if(pending.begin(), pending.end(), [&](const auto& of) { return of.scanner == scanner; });
    if (its == pending.end()) its = pending.insert(pending.end(), PendingCopies{scanner});
    its->storages.push_back(std::move(one));
  };
  bool is_weight_written = false;
  for (const c10::StorageImpl* storage : storages) {
    auto written = find(storage, journal);
    if (written == nullptr) continue;
    watched_.erase(storage);
    if (!has_to_be_copied(*written)) continue;
    is_weight_written |= written->is_weight();
    add(std::move(written));
  }
  if (!is_weight_written) return pending;
  for (auto one = watched_.begin(); one != watched_.end();) {
    auto other = one->second.lock();
    if (other == nullptr) {
      one = watched_.erase(one);
      continue;
    }
    ++one;
    if (other->is_weight() && has_to_be_copied(*other) && other->is_unchanged(journal)) add(std::move(other));
  }
  return pending;
}

void ReservedRooms::give_room(const Scanner& scanner, c10::ArrayRef<std::shared_ptr<PreservedStorage>> storages,
                              int64_t max_bytes) {
  if (!has_any(scanner)) return;
  size_t fitting = 0, bytes = 0;
  for (const auto& storage : storages) {
    const size_t with_it = bytes + aligned_for_copy(storage->bytes());
    if (with_it > static_cast<size_t>(max_bytes)) break;
    bytes = with_it;
    ++fitting;
  }
  const auto room = fitting == 0 ? nullptr : take(scanner, bytes, max_bytes);
  if (room == nullptr && has_any(scanner)) fitting = 0;
  for (const auto& storage : storages.slice(fitting)) storage->refuse_room(max_bytes);
  if (room == nullptr) return;
  size_t offset = 0;
  for (const auto& storage : storages.slice(0, fitting)) {
    storage->set_room(room, offset);
    offset += aligned_for_copy(storage->bytes());
  }
}

bool ReservedRooms::has_any(const Scanner& scanner) const {
  return std::find(have_none_.begin(), have_none_.end(), &scanner) == have_none_.end();
}

std::shared_ptr<const ReservedMemory> ReservedRooms::take(const Scanner& scanner, size_t bytes, int64_t max_bytes) {
  if (!has_any(scanner)) return nullptr;
  if (auto known = find(scanner, bytes)) return known;
  const size_t size = std::bit_ceil(std::max(bytes, kSmallestRoom));
  return bytes_ + size > static_cast<size_t>(max_bytes) ? nullptr : reserve(scanner, size);
}

// Returns the smallest room that nobody uses; null if there is none.
std::shared_ptr<const ReservedMemory> ReservedRooms::find(const Scanner& scanner, size_t bytes) const {
  const std::shared_ptr<const ReservedMemory>* smallest = nullptr;
  for (const auto& room : rooms_) {
    if (room.use_count() > 1 || room->scanner != &scanner || room->bytes < bytes) continue;
    if (smallest == nullptr || room->bytes < (*smallest)->bytes) smallest = &room;
  }
  return smallest == nullptr ? nullptr : *smallest;
}

// Returns null if the device has no such memory.
std::shared_ptr<const ReservedMemory> ReservedRooms::reserve(const Scanner& scanner, size_t bytes) {
  void* address = nullptr;
  try {
    address = scanner.reserve(bytes);
  } catch (const std::exception&) {  // the copies are a help, not more
  }
  if (address == nullptr) {
    have_none_.push_back(&scanner);
    return nullptr;
  }
  bytes_ += bytes;
  return rooms_.emplace_back(std::make_shared<const ReservedMemory>(ReservedMemory{&scanner, address, bytes}));
}

void launch_copies(const PendingCopies& copies, void* stream) {
  const auto& storages = copies.storages;
  for (size_t first = 0; first < storages.size(); first += cuda::kMaxCopies) {
    std::vector<c10::intrusive_ptr<c10::StorageImpl>> alive;  // until the copies are queued
    std::vector<PreservedStorage*> copied;
    cuda::CopyTable table{};
    for (size_t i = first; i < std::min(first + cuda::kMaxCopies, storages.size()); ++i) {
      PreservedStorage& one = *storages[i];
      auto storage = one.storage_.lock();
      if (!storage || storage->nbytes() != one.bytes_ || storage->data() == nullptr) continue;
      table.entry[table.entries++] = {storage->data(), one.address_of_copy(), one.bytes_};
      alive.push_back(std::move(storage));
      copied.push_back(&one);
    }
    if (copied.empty()) continue;
    const uint32_t launch = copies.scanner->copy_if_alarmed(table, stream);
    for (PreservedStorage* const one : copied) one->launch_ = launch;
  }
}

}  // namespace torchnan
