#include "origin/collectives.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <c10/util/accumulate.h>

#include "check/bounds/bound_cache.h"
#include "check/bounds/dtype_range.h"
#include "origin/dependent_values.h"
#include "origin/elementwise_attribution.h"
#include "origin/harm.h"
#include "origin/inference_turn.h"
#include "origin/memory_region.h"
#include "origin/moved_bytes.h"
#include "origin/nonfinite_registry.h"
#include "origin/origin_records.h"
#include "origin/unused_results.h"
#include "base/fork_safe_mutex.h"
#include "check/scan/storage_of.h"
#include "check/scan/tensor_scan.h"

namespace torchnan {
namespace {

constexpr size_t kMostLarge = 1 << 12;  // elements of a tensor that are told apart

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

WeakStorage weak_storage_of(const at::Tensor& tensor) { return WeakStorage(tensor.storage().getWeakStorageImpl()); }

// A result of a collective.
struct ReceivedTensor {
  MemoryRegion region;
  std::shared_ptr<OriginRecord> origin;  // of a sum or product that may overflow; else null
  LargeElements large;                   // those of them that may, if that is known
  uint64_t number = 0;                   // in the order in which they were received
};

// A part of unwritten memory that a collective writes.
struct ReceivedPart {
  MemoryRegion region;
  std::shared_ptr<const StartedWork> work;
};

// What collectives write in one storage. Keeps no tensor alive.
struct ReceivedMemory {
  WeakStorage storage;
  std::vector<ReceivedTensor> results;
  std::optional<Allocation> allocation{};  // if the memory was unwritten when the first of `parts` was begun
  std::vector<ReceivedPart> parts{};
};

// A bad tensor that this rank has sent inside an object. Its own copy comes back to it as bytes.
struct SentInObject {
  static constexpr size_t kMost = 64;        // beyond it the oldest are dropped
  static constexpr uint64_t kForObject = 3;  // an object is sent in at most so many collectives: scatter_object_list()

  size_t digest = 0;
  NonfiniteRegistry::ProvenancePtr provenance;
  uint64_t collectives = 0;  // that the thread had started
};

// What the collectives of this process have sent and received.
struct Remembered {
  std::unordered_map<const c10::StorageImpl*, ReceivedMemory> received;
  uint64_t count = 0;  // of results
  size_t purge_at = 64;
  std::vector<SentInObject> sent_in_objects;
  const std::string* sparse_collective = nullptr;  // the last one on sparse tensors; lives as long as the process
  NonfiniteRegistry::ProvenancePtr sent_sparse;    // the causes of what this rank has sent to it
};

// Never destroyed: threads may outlive static destructors.
ForkSafeMutex& remembered_mutex = *new ForkSafeMutex;  // also of each StartedWork
Remembered& remembered = *new Remembered;
std::atomic<bool> is_memory_received{false};

thread_local const std::string* last_collective = nullptr;  // its name, which lives as long as the process
thread_local uint64_t started_collectives = 0;

// Returns a digest of dtype and bytes; nothing for a tensor with gaps between its elements.
std::optional<size_t> digest_of(const at::Tensor& values) {
  if (!values.is_cpu() || !values.is_non_overlapping_and_dense()) return std::nullopt;
  const std::string_view bytes(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  return std::hash<std::string_view>()(bytes) ^ static_cast<size_t>(values.scalar_type());
}

NonfiniteRegistry::ProvenancePtr sent_in_object(const at::Tensor& values) {
  const std::lock_guard lock(remembered_mutex);
  if (remembered.sent_in_objects.empty()) return nullptr;
  const auto digest = digest_of(values);
  for (const SentInObject& one : remembered.sent_in_objects) {
    const bool is_of_last = started_collectives - one.collectives <= SentInObject::kForObject;
    if (is_of_last && digest == one.digest) return one.provenance;
  }
  return nullptr;
}

// Moves the entries of freed storages to `dead`.
void purge(std::vector<ReceivedMemory>& dead) {
  std::erase_if(remembered.received, [&](auto& one) {
    const bool is_dead = one.second.storage.expired();
    if (is_dead) dead.push_back(std::move(one.second));
    return is_dead;
  });
  remembered.purge_at = std::max<size_t>(64, 2 * remembered.received.size());
}

// Returns the entry of a tensor's storage; the lock is held. Moves entries of freed storages to `dead`.
ReceivedMemory& received_memory(const at::Tensor& target, std::vector<ReceivedMemory>& dead) {
  if (remembered.received.size() >= remembered.purge_at) purge(dead);
  const auto [place, is_new] = remembered.received.try_emplace(target.storage().unsafeGetStorageImpl(),
                                                               ReceivedMemory{weak_storage_of(target), {}});
  if (!is_new && place->second.storage.expired()) {  // another storage was at this address
    dead.push_back(std::exchange(place->second, ReceivedMemory{weak_storage_of(target), {}}));
  }
  is_memory_received = true;
  return place->second;
}

// Returns the same, or null if the storage has none; the lock is held.
ReceivedMemory* find_received(const at::Tensor& target) {
  const auto known = remembered.received.find(target.storage().unsafeGetStorageImpl());
  return known == remembered.received.end() || known->second.storage.expired() ? nullptr : &known->second;
}

// Replaces what the memory received before.
void add_received(const at::Tensor& target, std::shared_ptr<OriginRecord> origin, LargeElements large) {
  std::vector<ReceivedMemory> dead;  // released after the lock
  std::vector<ReceivedTensor> replaced;
  ReceivedTensor received{MemoryRegion(target), std::move(origin), std::move(large)};
  const std::lock_guard lock(remembered_mutex);
  ReceivedMemory& memory = received_memory(target, dead);
  const auto kept = std::stable_partition(memory.results.begin(), memory.results.end(),
                                          [&](const auto& one) { return !overlap(one.region, received.region); });
  replaced.assign(std::make_move_iterator(kept), std::make_move_iterator(memory.results.end()));
  memory.results.erase(kept, memory.results.end());
  received.number = ++remembered.count;
  memory.results.push_back(std::move(received));
}

// Adds the values of the result; the first of several tensors stands for all.
void fill(OriginRecord& origin, const at::Tensor& values, NonfiniteKinds kinds) {
  const TensorStats stats = compute_stats(values);
  const std::lock_guard lock(remembered_mutex);
  if (origin.kinds.any()) return;
  origin.kinds = kinds;
  fill_tensor_stats(values, stats, origin.facts);
}

// Whether one of these elements of a result of this size is infinite. Unknown, hence true, for a part of it.
bool is_infinite_at(const at::Tensor& result, int64_t size, const std::vector<int64_t>& elements) {
  if (result.numel() != size || !result.is_contiguous()) return true;
  const auto kinds = kinds_by_element(result);
  return std::any_of(elements.begin(), elements.end(), [&](int64_t element) { return (*kinds)[element].any(); });
}

// Records that a collective will write these values. `before` is what was known of their memory.
void record_received_part(const at::Tensor& values, const BoundCache::Entry& before,
                          const std::shared_ptr<const StartedWork>& work) {
  const bool was_unwritten = before.state == BoundCache::State::kUninitialized;
  if (!was_unwritten && !is_memory_received) return;
  std::vector<ReceivedMemory> dead;  // released after the lock
  std::vector<ReceivedPart> replaced;
  const std::lock_guard lock(remembered_mutex);
  ReceivedMemory* const memory = was_unwritten ? &received_memory(values, dead) : find_received(values);
  if (was_unwritten) {
    memory->allocation = Allocation{before.site, before.op};
    replaced.swap(memory->parts);
  } else if (memory == nullptr || !memory->allocation) {
    return;
  }
  const MemoryRegion region(values);
  const bool is_known = std::any_of(memory->parts.begin(), memory->parts.end(),
                                    [&](const ReceivedPart& part) { return covers(part.region, region); });
  if (!is_known) memory->parts.push_back({region, work});
}

void record_sparse_collective(const std::string& name, const NonfiniteRegistry::ProvenancePtr& sent) {
  NonfiniteRegistry::ProvenancePtr released = sent;  // after the lock
  const std::lock_guard lock(remembered_mutex);
  remembered.sparse_collective = &name;
  std::swap(remembered.sent_sparse, released);
}

// Returns the number that one rank at least exceeds if the result exceeds `limit`; infinite if the result cannot
// overflow.
double largest_harmless(const CollectiveCall& facts, double limit) {
  if (facts.ranks < 2) return std::numeric_limits<double>::infinity();
  const auto ranks = static_cast<double>(facts.ranks);
  switch (facts.reduction) {
    case Reduction::kSum:
      return limit / ranks;
    case Reduction::kProduct:
      return std::pow(limit, 1 / ranks) * (1 - 1e-6);  // it rounds
    case Reduction::kNone:
      break;
  }
  return std::numeric_limits<double>::infinity();
}

// No other rank can follow a finite value that depends on a NaN, so sending it is a read.
void report_dependent(DetectionSession& session, const at::Tensor& sent) {
  if (const auto provenance = provenance_of_dependent(sent))
    report_harm(session, *provenance, HarmKind::kRead, NonfiniteKinds::only_nan());
}

// Whether an argument is a list of lists.
bool is_nested(const c10::IValue& value) {
  return value.isList() && !value.toListRef().empty() && value.toListRef().front().isList();
}

template <typename Visit>
void for_each_nested(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor());
  if (!value.isList()) return;
  for (const c10::IValue& element : value.toListRef()) for_each_nested(element, visit);
}

}  // namespace

HostCollective::HostCollective(const CallContext& call, c10::ArrayRef<c10::IValue> arguments, ThreadState& thread)
    : call_(call), thread_(thread), facts_(read_collective_call(call.plan, arguments)), traits_(call.plan.collective) {}

// A broadcast reads only the tensors of the root.
bool HostCollective::is_read(const OpPlan::CollectiveArgument& argument) const {
  return argument.reads && (!traits_.is_broadcast || facts_.root == facts_.rank);
}

bool HostCollective::is_written(const OpPlan::CollectiveArgument& argument) const {
  return argument.writes && (!traits_.is_broadcast || facts_.root != facts_.rank);
}

void HostCollective::inspect_sent(c10::SmallVectorImpl<BadArgument>& bad_arguments) {
  note_collective(call_.session);
  for (const OpPlan::CollectiveArgument& argument : call_.plan.collective_arguments) {
    if (!is_read(argument)) continue;
    int64_t position = 0;
    for_each_nested(call_.saved[argument.saved_index],
                    [&](const at::Tensor& sent) { inspect(sent, position++, argument, bad_arguments); });
  }
  for (const BadArgument& sent : bad_arguments) {
    const std::string* known_place = own_elements(sent.tensor) ? &call_.plan.name : nullptr;
    record_sent(call_.session, {sent.provenance, traits_.is_reduction, known_place});
  }
  if (!may_overflow_.defined() || !bad_arguments.empty()) return;
  // Only now, while the stack exists: this is rare.
  origin_ = reduction_origin(call_, may_overflow_);
}

// Of a reduce-scatter, a rank receives the sum of one part: of each tensor, or of one tensor in a list for each rank.
bool HostCollective::may_come_back(const at::Tensor& sent, int64_t position, const OpPlan::CollectiveArgument& argument,
                                   const LargeElements& large) const {
  if (!traits_.is_reduce_scatter) return true;
  if (is_nested(call_.saved[argument.saved_index])) return position % facts_.ranks == facts_.rank;
  if (large == nullptr) return true;
  return std::any_of(large->begin(), large->end(),
                     [&](int64_t element) { return element * facts_.ranks / sent.numel() == facts_.rank; });
}

void HostCollective::inspect(const at::Tensor& sent, int64_t position, const OpPlan::CollectiveArgument& argument,
                             c10::SmallVectorImpl<BadArgument>& bad_arguments) {
  const std::string& name = call_.plan.argument_names[call_.plan.saved_arguments[argument.saved_index]];
  report_dependent(call_.session, sent);
  if (may_be_bytes(sent)) {
    if (auto moved = nonfinite_registry().find_present(sent))
      bad_arguments.push_back({sent, name, -1, moved->possible_kinds(), std::move(moved)});
    return;
  }
  const at::Tensor values = scannable_values(sent);
  if (!values.defined()) return;
  BoundCache::Entry known = bound_cache().find(values);
  const double limit = largest_harmless(facts_, largest_number(values.scalar_type()));
  const auto may_overflow = [&](double largest) { return largest > limit; };
  if (known.state != BoundCache::State::kFinite || may_overflow(known.bound.max_abs)) {
    const ScanResult verdict = check_finite(values);
    if (verdict.skip != Skip::kNone) return;
    thread_.counters().count_scanned(verdict.bytes);
    if (!verdict.finite) {
      bad_arguments.push_back(bad_argument(call_, values, name, -1, kinds_of(values), argument.writes));
      return;
    }
    known.bound.max_abs = verdict.max_abs;
    if (!known.exported) bound_cache().record_read(values, {verdict.max_abs});
  }
  if (!may_overflow(known.bound.max_abs)) return;
  auto elements =
      argument.writes || traits_.is_reduce_scatter ? elements_beyond(values, limit, kMostLarge) : std::nullopt;
  const LargeElements large = elements ? std::make_shared<const std::vector<int64_t>>(std::move(*elements)) : nullptr;
  if (!may_come_back(values, position, argument, large)) return;
  may_overflow_ = values;
  if (argument.writes) large_.emplace_back(values, large);
}

void HostCollective::expect_received(c10::ArrayRef<BadArgument> bad_arguments) {
  last_collective = &call_.plan.name;
  ++started_collectives;
  for (const OpPlan::CollectiveArgument& argument : call_.plan.collective_arguments) {
    if (!is_written(argument)) continue;
    const c10::IValue& saved = call_.saved[argument.saved_index];
    int64_t position = 0;
    for_each_nested(saved, [&](const at::Tensor& received) {
      expect(received, position++, saved, is_read(argument), bad_arguments);
    });
  }
}

void HostCollective::expect_result(const at::Tensor& result, c10::ArrayRef<BadArgument> bad_arguments) {
  for (const OpPlan::CollectiveArgument& argument : call_.plan.collective_arguments) {
    bool is_argument = false;
    for_each_nested(call_.saved[argument.saved_index],
                    [&](const at::Tensor& one) { is_argument = is_argument || one.is_same(result); });
    if (is_argument) return;  // marked before the call
  }
  expect(result, 0, result, /*is_sent=*/false, bad_arguments);
}

void HostCollective::follow(c10::ArrayRef<c10::IValue> results) {
  if (work_.use_count() == 1) return;  // nothing that it writes was unwritten
  StartedWork started = started_work(results);
  const std::lock_guard lock(remembered_mutex);
  std::swap(*work_, started);
}

at::Tensor HostCollective::own_part(const at::Tensor& values, int64_t position, const c10::IValue& argument) const {
  if (!traits_.is_gather || facts_.ranks < 2) return values;
  // A list of the ranks' tensors; or one for each rank, if several tensors are gathered at once.
  if (is_nested(argument)) {
    const c10::ArrayRef<c10::IValue> lists = argument.toListRef();
    const auto in_each = static_cast<int64_t>(lists.front().toListRef().size());
    const int64_t rank = lists.size() == 1 ? position : position / std::max<int64_t>(in_each, 1);
    return rank == facts_.rank ? values : at::Tensor();
  }
  if (argument.isList() && traits_.lists_ranks) return position == facts_.rank ? values : at::Tensor();
  MemoryRegion part(values);
  std::vector<int64_t> splits = facts_.output_splits;
  if (part.sizes.empty()) return values;
  if (splits.empty()) splits.assign(static_cast<size_t>(facts_.ranks), part.sizes[0] / facts_.ranks);
  const bool is_valid = static_cast<int64_t>(splits.size()) == facts_.ranks &&
                        *std::min_element(splits.begin(), splits.end()) >= 0 &&
                        std::accumulate(splits.begin(), splits.end(), int64_t{0}) == part.sizes[0];
  if (!is_valid) return values;  // the collective refuses it
  const auto own = splits.begin() + facts_.rank;
  const int64_t rows = *own, first = std::accumulate(splits.begin(), own, int64_t{0});
  if (rows == 0) return {};
  part.sizes[0] = rows;
  part.offset += first * part.strides[0];
  return part.tensor_in(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage_of(values)));
}

std::vector<at::Tensor> HostCollective::own_parts(const at::Tensor& values, int64_t position,
                                                  const c10::IValue& argument, bool is_sent,
                                                  c10::ArrayRef<BadArgument> bad_arguments) const {
  if (bad_arguments.empty()) return {};
  const auto elements = own_elements(values, is_sent, bad_arguments);
  if (!elements) {
    const at::Tensor part = own_part(values, position, argument);
    return part.defined() ? std::vector{part} : std::vector<at::Tensor>();
  }
  std::vector<at::Tensor> parts;
  for (int64_t element : *elements) {
    MemoryRegion part(values);
    for (size_t d = part.sizes.size(); d-- > 0;) {
      part.offset += element % part.sizes[d] * part.strides[d];
      element /= part.sizes[d];
    }
    part.sizes.clear();
    part.strides.clear();
    parts.push_back(part.tensor_in(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage_of(values))));
  }
  return parts;
}

std::optional<std::set<int64_t>> HostCollective::own_elements(const at::Tensor& values, bool is_sent,
                                                              c10::ArrayRef<BadArgument> bad_arguments) const {
  std::set<int64_t> elements;
  for (const BadArgument& sent : bad_arguments) {
    if (is_sent && !sent.tensor.is_same(values)) continue;  // it has another result
    const auto of_sent = own_elements(sent.tensor);
    const int64_t parts = traits_.is_reduce_scatter ? facts_.ranks : 1;
    if (!of_sent || sent.tensor.numel() != parts * values.numel()) return std::nullopt;
    elements.insert(of_sent->begin(), of_sent->end());
  }
  return elements;
}

std::optional<std::set<int64_t>> HostCollective::own_elements(const at::Tensor& sent) const {
  constexpr size_t kMost = 16;
  const int64_t count = traits_.is_reduce_scatter ? sent.numel() / facts_.ranks : sent.numel();
  if (!traits_.is_reduction || sent.is_sparse() || count < 2 || count > static_cast<int64_t>(kMostLarge))
    return std::nullopt;
  const auto kinds = kinds_by_element(sent);
  const int64_t first = traits_.is_reduce_scatter ? facts_.rank * count : 0;
  std::set<int64_t> elements;
  for (int64_t i = 0; i < count; ++i) {
    if ((*kinds)[first + i].any()) elements.insert(i);
    if (elements.size() > kMost) return std::nullopt;
  }
  if (static_cast<int64_t>(elements.size()) == count) return std::nullopt;
  return elements;
}

void HostCollective::expect(const at::Tensor& received, int64_t position, const c10::IValue& argument, bool is_sent,
                            c10::ArrayRef<BadArgument> bad_arguments) {
  forget_dependent(received);
  const bool is_bytes = may_be_bytes(received);
  const at::Tensor values = is_bytes ? received : scannable_values(received);
  if (!values.defined()) return;
  if (is_bytes) set_has_received_bytes(true);
  record_received_part(values, bound_cache().find(values), work_);
  bound_cache().record_pending_collective(values, &call_.plan.name);
  const std::vector<at::Tensor> own = own_parts(values, position, argument, is_sent, bad_arguments);
  const bool is_own = own.size() == 1 && own.front().is_same(values);
  if (!is_own) {
    if (nonfinite_registry().in_use()) nonfinite_registry().settle(values);  // the old values
    const auto sent =
        std::find_if(large_.begin(), large_.end(), [&](const auto& one) { return one.first.is_same(values); });
    const bool is_large = sent != large_.end();
    add_received(values, is_large || !is_sent ? origin_ : nullptr, is_large ? sent->second : nullptr);
  }
  for (const at::Tensor& part : own) propagate_unscanned(call_, bad_arguments, part, /*is_pending=*/true);
  if (!received.is_sparse()) return;
  record_sparse_collective(call_.plan.name, bad_arguments.empty() ? nullptr : nonfinite_registry().find(values));
}

void record_sent_in_object(DetectionSession& session, const at::Tensor& tensor) {
  report_dependent(session, tensor);
  const at::Tensor values = scannable_values(tensor);
  if (!values.defined() || !nonfinite_registry().contains(values) || !kinds_of(values).any()) return;
  const auto provenance = nonfinite_registry().find(values);
  const auto digest = digest_of(values);
  if (provenance == nullptr || !digest) return;
  for (const Cause& cause : provenance->causes()) cause.origin->used = true;
  record_sent(session, {provenance});
  SentInObject dropped;  // released after the lock
  const std::lock_guard lock(remembered_mutex);
  auto& entries = remembered.sent_in_objects;
  if (entries.size() == SentInObject::kMost) {
    dropped = std::move(entries.front());
    entries.erase(entries.begin());
  }
  entries.push_back({*digest, provenance, started_collectives});
}

void record_received_in_object(const at::Tensor& values) {
  if (const auto own = sent_in_object(values)) {
    nonfinite_registry().remember(values, own);
    return;
  }
  if (last_collective != nullptr) bound_cache().record_pending_collective(values, last_collective);
}

std::shared_ptr<OriginRecord> overflowed_reduction(const at::Tensor& target, const at::Tensor& values,
                                                   NonfiniteKinds kinds) {
  if (kinds.nan()) return nullptr;  // another rank has sent it
  std::shared_ptr<OriginRecord> origin;
  LargeElements large;
  int64_t size = 0;
  {
    const MemoryRegion wanted(target);
    const std::lock_guard lock(remembered_mutex);
    const ReceivedMemory* const memory = find_received(target);
    if (memory == nullptr) return nullptr;
    for (const ReceivedTensor& one : memory->results) {
      if (one.origin == nullptr || !overlap(one.region, wanted)) continue;
      origin = one.origin;
      large = one.large;
      size = c10::multiply_integers(one.region.sizes);
    }
  }
  if (origin != nullptr && large != nullptr && !is_infinite_at(values, size, *large)) return nullptr;
  if (origin != nullptr) fill(*origin, values, kinds);
  return origin;
}

bool has_received() noexcept { return is_memory_received; }

std::vector<NonfiniteRegistry::ProvenancePtr> remember_unread(const CallContext& call) {
  std::vector<std::pair<uint64_t, at::Tensor>> living;
  {
    const std::lock_guard lock(remembered_mutex);
    for (const auto& [key, memory] : remembered.received) {
      const auto storage = memory.storage.lock();
      if (!storage) continue;
      for (const ReceivedTensor& one : memory.results) living.emplace_back(one.number, one.region.tensor_in(storage));
    }
  }
  std::sort(living.begin(), living.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<NonfiniteRegistry::ProvenancePtr> unread;
  for (const auto& [number, tensor] : living) {
    if (bound_cache().pending_collective(tensor) == nullptr || nonfinite_registry().find(tensor) != nullptr) continue;
    const NonfiniteKinds kinds = kinds_of(tensor);
    if (kinds.any()) unread.push_back(provenance_of_argument(call, tensor, kinds));
  }
  return unread;
}

std::optional<Allocation> allocation_of_unwritten(const at::Tensor& values) {
  if (!is_memory_received) return std::nullopt;
  const std::string* collective = bound_cache().pending_collective(values);
  if (collective == nullptr) return std::nullopt;
  Allocation allocation;
  std::vector<std::pair<MemoryRegion, StartedWork>> started;
  {
    const std::lock_guard lock(remembered_mutex);
    const ReceivedMemory* const known = find_received(values);
    if (known == nullptr || !known->allocation) return std::nullopt;
    allocation = *known->allocation;
    for (const ReceivedPart& part : known->parts) {
      if (part.region.dtype != values.scalar_type()) return std::nullopt;
      started.emplace_back(part.region, *part.work);
    }
  }
  std::vector<NestedStrides> received;
  for (const auto& [part, work] : started) {  // without the lock: a Work may be implemented in Python
    if (!is_running(work)) received.emplace_back(part);
  }
  if (lies_within(values, *kinds_by_element(values), received)) return std::nullopt;
  if (received.size() < started.size()) allocation.unfinished = collective;
  return allocation;
}

void expect_sparse_result(const at::Tensor& values) {
  const BoundCache::Entry known = bound_cache().find(values);
  if (known.state != BoundCache::State::kUnknown || known.op != nullptr) return;
  const std::string* name = nullptr;
  NonfiniteRegistry::ProvenancePtr sent;
  {
    const std::lock_guard lock(remembered_mutex);
    name = remembered.sparse_collective;
    sent = remembered.sent_sparse;
  }
  if (name == nullptr) return;
  if (sent != nullptr) {
    nonfinite_registry().remember(values, sent);
  } else {
    bound_cache().record_pending_collective(values, name);
  }
}

void forget_collectives() {
  Remembered released;  // after the lock
  set_has_received_bytes(false);
  const std::lock_guard lock(remembered_mutex);
  std::swap(remembered, released);
  is_memory_received = false;
}

}  // namespace torchnan
