// The values of storages that the program overwrites before a device has reported what was computed from them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/ArrayRef.h>

#include <torchnan/export.h>

#include "device/event.h"
#include "device/journal.h"
#include "device/scanner.h"

namespace torchnan {

// Memory of a device that takes none before something is written there.
struct ReservedMemory {
  const Scanner* scanner = nullptr;
  void* address = nullptr;
  size_t bytes = 0;
};

// One storage in the state in which it was when this was made. Before the program overwrites it, its device copies it,
// if it has raised its alarm by then: if not, nothing has to be explained.
class TORCHNAN_API PreservedStorage {
 public:
  // `last_event`: the one that last wrote the tensor.
  PreservedStorage(const at::Tensor& tensor, EventNumber last_event);

  // Gives it room for its copy. Without, it is not copied.
  void set_room(std::shared_ptr<const ReservedMemory> room, size_t offset);
  void refuse_room(int64_t limit) { exceeded_limit_ = limit; }
  bool has_room() const { return room_ != nullptr; }
  // Returns the limit of reserved memory that leaves no room for the copy; nothing if there is no such limit.
  std::optional<int64_t> exceeded_limit() const { return exceeded_limit_; }

  Scanner* scanner() const { return scanner_; }  // of its device; null on the host
  size_t bytes() const { return bytes_; }
  bool is_weight() const { return is_weight_; }  // a leaf that requires a gradient
  bool is_unchanged(const Journal& journal) const;

  // Whether the copy exists. The caller has waited for the device.
  bool is_copied() const;

  // Returns a new tensor with the copied values of the tensor at this place.
  at::Tensor copied(const TensorSnapshot& place) const;

 private:
  friend class PreservedStorages;
  friend void launch_copies(const struct PendingCopies& copies, void* stream);

  const c10::StorageImpl* key() const { return storage_._unsafe_get_target(); }
  void* address_of_copy() const { return static_cast<char*>(room_->address) + offset_; }

  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;  // keeps another storage from getting its address
  Scanner* scanner_;
  size_t bytes_;
  c10::VariableVersion writes_;  // counts them, except in inference mode and through `data`
  uint32_t version_;
  EventNumber last_event_;
  bool is_weight_;
  std::shared_ptr<const ReservedMemory> room_;
  size_t offset_ = 0;
  std::optional<int64_t> exceeded_limit_;
  std::atomic<uint32_t> launch_{0};  // the number of the launch that copies it; 0 for none
  EventNumber explains_until_ = 0;   // the newest result that the copy helps to explain
};

// The storages of a device that have to be copied now.
struct PendingCopies {
  Scanner* scanner;
  std::vector<std::shared_ptr<PreservedStorage>> storages{};
};

// All preserved storages that have not been overwritten yet. Not thread-safe. An optimizer writes one weight after the
// other, so the first write to one copies all: a healthy step pays one launch.
class TORCHNAN_API PreservedStorages {
 public:
  bool is_empty() const { return watched_.empty(); }

  // Returns the one of this storage, if it still has the same values; null if there is none.
  std::shared_ptr<PreservedStorage> find(const c10::StorageImpl* storage, const Journal& journal);
  void add(const std::shared_ptr<PreservedStorage>& preserved) { watched_[preserved->key()] = preserved; }

  // Records that the results of these events may have to be explained.
  void expect(EventNumber newest) { newest_result_ = std::max(newest_result_, newest); }

  // Returns what has to be copied before something is written into these storages, which are preserved no more.
  std::vector<PendingCopies> before_writes(c10::ArrayRef<const c10::StorageImpl*> storages, const Journal& journal);

 private:
  bool has_to_be_copied(const PreservedStorage& one) const;

  std::unordered_map<const c10::StorageImpl*, std::weak_ptr<PreservedStorage>> watched_;
  EventNumber newest_result_ = 0;
};

// How copies are laid out in reserved memory: each begins at a multiple of this.
constexpr size_t kCopyAlignment = 256;
inline size_t aligned_for_copy(size_t bytes) { return (bytes + kCopyAlignment - 1) / kCopyAlignment * kCopyAlignment; }

// Reserves memory, and gives it out again when nobody refers to it. Not thread-safe.
class TORCHNAN_API ReservedRooms {
 public:
  // Gives room to storages of one device in their order, as long as all that is reserved does not exceed `max_bytes`.
  void give_room(const Scanner& scanner, c10::ArrayRef<std::shared_ptr<PreservedStorage>> storages, int64_t max_bytes);

  // Returns memory that nobody else uses until it is given back; null if the device has none, or if all that is
  // reserved would exceed `max_bytes`.
  std::shared_ptr<const ReservedMemory> take(const Scanner& scanner, size_t bytes, int64_t max_bytes);

 private:
  bool has_any(const Scanner& scanner) const;  // whether its device has such memory, as far as is known
  std::shared_ptr<const ReservedMemory> find(const Scanner& scanner, size_t bytes) const;
  std::shared_ptr<const ReservedMemory> reserve(const Scanner& scanner, size_t bytes);

  std::vector<std::shared_ptr<const ReservedMemory>> rooms_;
  size_t bytes_ = 0;                       // of all rooms
  std::vector<const Scanner*> have_none_;  // devices that refuse to reserve memory
};

// Queues the copies on a stream. Throws std::runtime_error if the device refuses one.
void launch_copies(const PendingCopies& copies, void* stream);

}  // namespace torchnan
