#include "check/bounds/bound_cache.h"

#include <algorithm>
#include <bit>
#include <mutex>

#include <c10/core/CPUAllocator.h>

#include "base/thread_switches.h"
#include "check/scan/address_hash.h"
#include "check/scan/storage_of.h"

namespace torchnan {
namespace {

using State = BoundCache::State;

// Whether only operations write to this memory.
bool owned_by_pytorch_allocator(const c10::StorageImpl& storage) {
  static std::atomic<c10::DeleterFnPtr> known{nullptr};
  c10::DeleterFnPtr deleter = known.load(std::memory_order_relaxed);
  if (deleter == nullptr) known = deleter = c10::GetCPUAllocator()->raw_deleter();
  return storage.device_type() == c10::kCPU && storage.data_ptr().get_deleter() == deleter;
}

// Whether Tensor.numpy() has made an array of this memory, perhaps before detection: then it cannot be resized.
bool has_array(const c10::StorageImpl& storage) { return !storage.resizable(); }

bool is_marked(const c10::StorageImpl& storage) { return const_cast<c10::StorageImpl&>(storage).received_cuda(); }

bool is_bounded(State state) { return state == State::kFinite || state == State::kFiniteOrMasked; }

// An entry packed into a word: its state, its dtype, and above that the site, or the version of the tensor and the
// bound.
constexpr uint64_t kKnownBits = 0x7;
constexpr uint64_t kNonnegative = 0x8;
constexpr int kDtypeShift = 4;
constexpr uint64_t kDtypeBits = 0x7;  // all used by code_of()
constexpr uint64_t kExported = 0x80;  // for a state without a bound: memory that others can write to has no bound
constexpr uint64_t kAliased = 0x80;   // for a state with a bound: the version includes the switches of threads
constexpr int kVersionShift = 8;
constexpr uint64_t kVersionBits = 0xffff;
constexpr uint64_t kLow = 0xffffff;               // below the bound
constexpr uint64_t kStamped = uint64_t{1} << 63;  // takes the bit of the bound's sign

constexpr uint64_t computed_code_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return 1;
    case c10::ScalarType::Double:
      return 2;
    case c10::ScalarType::BFloat16:
      return 3;
    case c10::ScalarType::Half:
      return 4;
    case c10::ScalarType::ComplexFloat:
      return 5;
    case c10::ScalarType::ComplexDouble:
      return 6;
    case c10::ScalarType::ComplexHalf:
      return 7;
    default:
      return 0;
  }
}

constexpr auto kCodes = [] {
  std::array<uint8_t, static_cast<size_t>(c10::ScalarType::NumOptions)> codes{};
  for (size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<uint8_t>(computed_code_of(static_cast<c10::ScalarType>(i)));
  return codes;
}();

uint64_t code_of(c10::ScalarType dtype) { return kCodes[static_cast<size_t>(dtype)]; }

// Clears the low bits for the state, rounding up.
uint64_t packed(double max_abs) {
  return max_abs == RuleArguments::kUnknown ? std::bit_cast<uint64_t>(max_abs)
                                            : (std::bit_cast<uint64_t>(max_abs) + kLow) & ~kLow;
}

// An inference tensor has no version. Its recorded values hold as long as no other thread has run.
uint64_t version_of(const at::Tensor& tensor) {
  const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
  return version.enabled() ? version.current_version() : thread_switches();
}

uint64_t version_in(uint64_t word) { return (word >> kVersionShift) & kVersionBits; }

// Adds the number of thread switches to the version; both only grow.
uint64_t with_switches(uint64_t word) {
  const uint64_t version = (version_in(word) + thread_switches()) & kVersionBits;
  return (word & ~(kVersionBits << kVersionShift)) | version << kVersionShift;
}

// How many tensors that are known to share the version counter of this one refer to its storage: itself, and the tensor
// that it is a view of. How many share the counter does not tell, because each may have got another storage since, for
// example by `x.data = ...` or Module.double().
size_t known_references(const at::Tensor& tensor) {
  if (!tensor.is_view()) return 1;
  const c10::TensorImpl& base = *tensor._base().unsafeGetTensorImpl();
  return base.unsafe_storage().unsafeGetStorageImpl() == storage_of(tensor) ? 2 : 1;
}

// Whether an alias with a separate version counter may refer to the storage, and so write there unseen.
bool may_have_alias(const at::Tensor& tensor) {
  const size_t references = c10::raw::intrusive_ptr::use_count(storage_of(tensor));
  if (references == 1 || !tensor.unsafeGetTensorImpl()->version_counter().enabled()) return false;
  return references > known_references(tensor);
}

State state_of(uint64_t word) { return static_cast<State>(word & kKnownBits); }

// The conditions under which a bound holds: this dtype, at this version.
uint64_t pack_validity(const at::Tensor& tensor, bool awaits_version) {
  const uint64_t version = (version_of(tensor) + (awaits_version ? 1 : 0)) & kVersionBits;
  return (code_of(tensor.scalar_type()) << kDtypeShift) | version << kVersionShift;
}

uint64_t pack_bound(const Bound& bound, const at::Tensor& tensor, bool awaits_version) {
  const State state = bound.masked ? State::kFiniteOrMasked : State::kFinite;
  const uint64_t word = static_cast<uint64_t>(state) | (bound.nonnegative ? kNonnegative : 0) |
                        pack_validity(tensor, awaits_version) | packed(bound.max_abs);
  return may_have_alias(tensor) ? with_switches(word) | kAliased : word;
}

uint64_t pack(const BoundCache::Entry& entry, const at::Tensor& tensor) {
  if (is_bounded(entry.state)) return pack_bound(entry.bound, tensor, false);
  return static_cast<uint64_t>(entry.state) | (code_of(tensor.scalar_type()) << kDtypeShift) |
         uint64_t{entry.site} << 8;
}

bool is_exported_word(uint64_t word) { return !is_bounded(state_of(word)) && (word & kExported) != 0; }

// The same for memory that others can write to.
uint64_t pack_exported(uint64_t word) {
  const uint64_t known = is_bounded(state_of(word)) ? static_cast<uint64_t>(State::kStale) : word & ~kExported;
  return known | kExported;
}

// Whether a word is that of a bound in this state which still holds.
bool holds(uint64_t word, State state, const at::Tensor& tensor) {
  constexpr uint64_t kCompared = kKnownBits | kDtypeBits << kDtypeShift | kVersionBits << kVersionShift;
  const uint64_t expected = static_cast<uint64_t>(state) | pack_validity(tensor, false);
  return (word & kCompared) == ((word & kAliased) != 0 ? with_switches(expected) : expected);
}

Bound bound_in(uint64_t word) {
  return {std::bit_cast<double>(word & ~(kLow | kStamped)), (word & kNonnegative) != 0,
          state_of(word) == State::kFiniteOrMasked};
}

BoundCache::Entry unpack(uint64_t word, uintptr_t writer, const at::Tensor& tensor) {
  const State state = state_of(word);
  const bool exported = is_exported_word(word);
  const auto* op = reinterpret_cast<const std::string*>(writer);
  if (!is_bounded(state)) return {state, {}, exported, static_cast<SiteId>(word >> 8), op};
  if (((word >> kDtypeShift) & kDtypeBits) != code_of(tensor.scalar_type())) return {};
  const uint64_t version = version_of(tensor) + ((word & kAliased) != 0 ? thread_switches() : 0);
  if (version_in(word) != (version & kVersionBits)) return {.state = State::kStale};
  const bool stamped = (word & kStamped) != 0;
  return {state, bound_in(word), exported, 0, stamped ? nullptr : op, stamped ? writer : 0};
}

BoundCache& of_process = *new BoundCache;  // never destroyed: threads may outlive static destructors

}  // namespace

BoundCache::BoundCache() : buckets_(new Bucket[kBuckets]) {}

BoundCache::Bucket& BoundCache::bucket_of(const c10::StorageImpl* storage) const noexcept {
  return buckets_[hash_of_address(storage) % kBuckets];
}

// Null if it has none.
BoundCache::Slot* BoundCache::slot_of(const c10::StorageImpl* storage) const noexcept {
  for (Slot& slot : bucket_of(storage).slots) {
    if (slot.key.load(std::memory_order_acquire) == storage) return &slot;
  }
  return nullptr;
}

// `storage` may be null.
BoundCache::Packed BoundCache::load(const c10::StorageImpl* storage) const noexcept {
  if (storage == nullptr || !is_marked(*storage)) return {};
  const Slot* slot = slot_of(storage);
  if (slot == nullptr || slot->memory.load(std::memory_order_acquire) != storage->data_ptr().get()) return {};
  const Packed found{slot->word.load(std::memory_order_acquire), slot->writer.load(std::memory_order_acquire)};
  if (slot->key.load(std::memory_order_acquire) != storage) return {};  // evicted meanwhile
  return found;
}

BoundCache::Entry BoundCache::find(const at::Tensor& tensor) const noexcept {
  const Packed found = load(storage_of(tensor));
  return unpack(found.word, found.writer, tensor);
}

[[gnu::flatten]] bool BoundCache::is_finite(const at::Tensor& tensor) const noexcept {
  return holds(load(storage_of(tensor)).word, State::kFinite, tensor);
}

[[gnu::flatten]] bool BoundCache::find_bound(const at::Tensor& tensor, Bound& found) const noexcept {
  const uint64_t word = load(storage_of(tensor)).word;
  const State state = state_of(word);
  if (!is_bounded(state) || !holds(word, state, tensor)) return false;
  found = bound_in(word);
  return true;
}

const std::string* BoundCache::pending_collective(const at::Tensor& tensor) const noexcept {
  const Entry entry = find(tensor);
  return entry.state == State::kUnknown || entry.state == State::kRequested ? entry.op : nullptr;
}

void BoundCache::set(const at::Tensor& tensor, const Entry& entry) noexcept {
  c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr || !owned_by_pytorch_allocator(*storage)) return;
  store(storage, pack(entry, tensor), reinterpret_cast<uintptr_t>(entry.op));
  if (entry.stamp != 0) stamp(tensor, entry.stamp);
}

BoundCache::Slot& BoundCache::choose_slot(const c10::StorageImpl* storage) noexcept {
  if (Slot* const own = slot_of(storage)) return *own;
  auto& slots = bucket_of(storage).slots;
  for (Slot& slot : slots) {
    if (slot.key.load(std::memory_order_acquire) == nullptr) return slot;
  }
  // full: evict a slot chosen by address bits, which are as good as random
  return slots[(reinterpret_cast<uintptr_t>(storage) >> 4) % kWays];
}

void BoundCache::store(c10::StorageImpl* storage, uint64_t word, uintptr_t writer) noexcept {
  Slot& slot = choose_slot(storage);
  const bool was_marked = is_marked(*storage);  // otherwise an entry here belongs to a dead storage
  const bool is_own = was_marked && slot.key.load(std::memory_order_acquire) == storage;
  const bool exported = is_own ? is_exported_word(slot.word.load(std::memory_order_acquire))
                               : (was_marked && is_exported(storage)) || has_array(*storage);
  if (exported) word = pack_exported(word);
  slot.key.store(nullptr, std::memory_order_release);  // readers see all of it, or nothing
  slot.memory.store(storage->data_ptr().get(), std::memory_order_release);
  slot.word.store(word, std::memory_order_release);
  slot.writer.store(writer, std::memory_order_release);
  slot.key.store(storage, std::memory_order_release);
  if (!was_marked) storage->set_received_cuda(true);
}

// Flattened, as every checked result passes here.
[[gnu::flatten]] void BoundCache::record_written(const at::Tensor& tensor, const Bound& bound, const std::string* op,
                                                 bool awaits_version) noexcept {
  c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr) return;
  if (!covers_whole_storage(tensor, *storage)) [[unlikely]]
    return record_part_written(tensor, bound, awaits_version);
  if (owned_by_pytorch_allocator(*storage))
    store(storage, pack_bound(bound, tensor, awaits_version), reinterpret_cast<uintptr_t>(op));
}

void BoundCache::record_part_written(const at::Tensor& tensor, const Bound& bound, bool awaits_version) noexcept {
  const Entry whole = find(tensor);
  if (!is_bounded(whole.state)) return mark_stale(tensor);
  const Bound joined = bound.joined(whole.bound);
  store(storage_of(tensor), pack_bound(joined, tensor, awaits_version), 0);  // no operator has made all of it
}

void BoundCache::stamp(const at::Tensor& tensor, uint64_t stamp) noexcept {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr || !is_marked(*storage)) return;
  Slot* const slot = slot_of(storage);
  if (slot == nullptr) return;
  const uint64_t word = slot->word.load(std::memory_order_acquire);
  if (state_of(word) != State::kFinite) return;
  slot->key.store(nullptr, std::memory_order_release);  // readers see both, or neither
  slot->writer.store(stamp, std::memory_order_release);
  slot->word.store(word | kStamped, std::memory_order_release);
  slot->key.store(storage, std::memory_order_release);
}

void BoundCache::record_read(const at::Tensor& tensor, Bound bound) noexcept {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage != nullptr && covers_whole_storage(tensor, *storage)) set(tensor, {State::kFinite, bound});
}

void BoundCache::record_nonnegative(const at::Tensor& tensor) noexcept {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr || !covers_whole_storage(tensor, *storage)) return;
  Entry entry = find(tensor);
  if (entry.state != State::kFinite || entry.bound.nonnegative) return;
  entry.bound.nonnegative = true;
  set(tensor, entry);
}

void BoundCache::record_tightened(const at::Tensor& tensor, double max_abs) noexcept {
  Entry entry = find(tensor);
  if (entry.state != State::kFinite) return;
  entry.bound.max_abs = max_abs;
  set(tensor, entry);
}

// The entry may belong to a freed storage. Changing it is harmless: no tensor uses it.
void BoundCache::record_tightened(const c10::StorageImpl* storage, uint64_t stamp, double max_abs) noexcept {
  Slot* const slot = slot_of(storage);
  if (slot == nullptr || slot->writer.load(std::memory_order_acquire) != stamp) return;
  const uint64_t word = slot->word.load(std::memory_order_acquire);
  const uint64_t tightened = (word & (kLow | kStamped)) | packed(max_abs);
  if ((word & kStamped) == 0 || tightened >= word) return;
  slot->key.store(nullptr, std::memory_order_release);
  slot->word.store(tightened, std::memory_order_release);
  slot->key.store(storage, std::memory_order_release);
}

void BoundCache::record_requested(const at::Tensor& tensor, const std::string* collective) noexcept {
  set(tensor, Entry{.state = State::kRequested, .op = collective});
}

void BoundCache::record_pending_collective(const at::Tensor& tensor, const std::string* collective) noexcept {
  set(tensor, Entry{.op = collective});
}

void BoundCache::record_uninitialized(const at::Tensor& tensor, SiteId site, const std::string* op) noexcept {
  set(tensor, {State::kUninitialized, {}, false, site, op});
}

void BoundCache::record_ignored(const at::Tensor& tensor, const std::string* op) noexcept {
  set(tensor, {State::kIgnored, {}, false, 0, op});
}

void BoundCache::forget(const at::Tensor& tensor) noexcept {
  const c10::StorageImpl* storage = storage_of(tensor);
  if (storage != nullptr && is_marked(*storage)) set(tensor, {});
}

void BoundCache::mark_stale(const at::Tensor& tensor) noexcept {
  if (c10::StorageImpl* storage = storage_of(tensor)) mark_stale(*storage);
}

void BoundCache::mark_stale(c10::StorageImpl& storage) noexcept {
  if (is_bounded(state_of(load(&storage).word))) store(&storage, static_cast<uint64_t>(State::kStale), 0);
}

void BoundCache::doubt(const c10::StorageImpl* storage) noexcept {
  Slot* const slot = slot_of(storage);
  if (slot == nullptr || !is_bounded(state_of(slot->word.load(std::memory_order_acquire)))) return;
  slot->key.store(nullptr, std::memory_order_release);
  slot->word.store(static_cast<uint64_t>(State::kStale), std::memory_order_release);
  slot->writer.store(0, std::memory_order_release);
  slot->key.store(storage, std::memory_order_release);
}

void BoundCache::mark_written_unseen(const at::Tensor& tensor) noexcept {
  c10::StorageImpl* storage = storage_of(tensor);
  if (storage == nullptr) return;
  mark_stale(*storage);
  if (state_of(load(storage).word) == State::kUninitialized) store(storage, static_cast<uint64_t>(State::kUnknown), 0);
}

void BoundCache::record_exported(const at::Tensor& tensor) {
  if (tensor.has_storage()) record_exported(tensor.storage());
}

// While the alias exists, later records count the references.
void BoundCache::record_aliased(const at::Tensor& tensor) noexcept {
  c10::StorageImpl* storage = storage_of(tensor);
  const Packed found = load(storage);
  if (!is_bounded(state_of(found.word)) || (found.word & kAliased) != 0) return;
  if (version_in(found.word) != (version_of(tensor) & kVersionBits)) return mark_stale(*storage);
  store(storage, with_switches(found.word) | kAliased, found.writer);
}

void BoundCache::record_exported(const c10::Storage& exported) {
  c10::StorageImpl* storage = exported.unsafeGetStorageImpl();
  if (storage == nullptr || !owned_by_pytorch_allocator(*storage)) return;
  const Packed before = load(storage);
  if (is_exported_word(before.word)) return;
  drop(storage);
  {
    const std::lock_guard lock(mutex_);
    if (exported_.size() >= purge_at_) {
      std::erase_if(exported_, [](const auto& one) { return one.second.expired(); });
      purge_at_ = std::max<size_t>(64, 2 * exported_.size());
    }
    exported_.insert_or_assign(storage, exported.getWeakStorageImpl());
    exported_count_ = exported_.size();
  }
  storage->set_received_cuda(true);
  store(storage, before.word, is_bounded(state_of(before.word)) ? 0 : before.writer);
}

// Makes the next entry look up whether the storage is exported.
void BoundCache::drop(const c10::StorageImpl* storage) noexcept {
  if (Slot* const slot = slot_of(storage)) slot->key.store(nullptr, std::memory_order_release);
}

bool BoundCache::is_exported(const c10::StorageImpl* storage) const noexcept {
  if (exported_count_.load(std::memory_order_relaxed) == 0) return false;
  const std::lock_guard lock(mutex_);
  const auto found = exported_.find(storage);
  return found != exported_.end() && !found->second.expired();
}

void BoundCache::forget_bounds() noexcept {
  for (size_t b = 0; b < kBuckets; ++b) {
    for (Slot& slot : buckets_[b].slots) {
      if (is_bounded(state_of(slot.word.load(std::memory_order_acquire)))) {
        slot.key.store(nullptr, std::memory_order_release);
      }
    }
  }
}

void BoundCache::clear() noexcept {
  for (size_t b = 0; b < kBuckets; ++b) {
    for (Slot& slot : buckets_[b].slots) slot.key.store(nullptr, std::memory_order_release);
  }
}

BoundCache& bound_cache() { return of_process; }

}  // namespace torchnan
