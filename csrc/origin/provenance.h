// The life of a non-finite value: its origin, and the operations that passed it on.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torchnan/finding.h>

#include "check/scan/nonfinite_kinds.h"
#include "base/runtime.h"

namespace torchnan {

struct OpPlan;
struct ReplayedRegion;
class DetectionSession;

// How a value that no operation made entered the computation: the first operation that did more than move it.
struct Entry {
  Finding facts;               // op, place, node, step
  std::optional<Owner> owner;  // the owner of the tensor it was read from
};

// The known facts about an origin when it is recorded.
struct OriginFacts {
  enum class Source : uint8_t {
    kOperation,  // made by arithmetic
    kConstant,   // written in the program: full(-inf), a mask, torch.tensor(nan)
    kExternal,   // existed when first read: data, a weight, unwritten memory
  };

  uint64_t sequence = 0;  // order of birth in the process
  Source source = Source::kOperation;
  NonfiniteKinds kinds;
  Finding facts;  // all facts at birth; the modules it names may be gone when harm is done
  Site site;
  std::weak_ptr<DetectionSession> session;  // the scope at its birth

  bool scalar = false;            // without dimensions
  bool written_in_place = false;  // by an operation that writes into an argument: x[i] = v
  bool taken_over = false;        // external: in memory that does not belong to PyTorch, as with from_numpy()
  SiteId written = 0;          // external: where the program took it over, or wrote it into a weight, if that was seen
  std::optional<Owner> owner;  // external: owner of the tensor it was first seen in
  bool parameter = false;      // external: a leaf that requires grad
  bool unwritten = false;      // external: the memory came from empty() and was never written
  bool foreign = false;        // external: the memory was finite before, or a compiled graph wrote it
  bool border = false;         // external: came out of a compiled region that could not be followed
  std::shared_ptr<const ReplayedRegion> region;  // the compiled region that made it; null outside of regions
  Site allocation;                               // of unwritten memory
  std::string allocator;                         // the op that allocated it
  std::string collective;                        // external: the collective that received it from another rank
  std::string incoming;                          // operation: which argument came in with -inf, for the reader
  bool received = false;                         // from the other process that made it
};

// The origin of non-finite values: one record per cause.
struct OriginRecord : OriginFacts {
  OriginRecord() = default;
  explicit OriginRecord(const OriginFacts& known) : OriginFacts(known) {}  // nothing has happened to the values yet
  ~OriginRecord() { delete entry_.load(); }
  OriginRecord(const OriginRecord&) = delete;
  OriginRecord& operator=(const OriginRecord&) = delete;

  // Set once, when the value enters computation; null until then.
  void enter(Entry entry);
  const Entry* entry() const { return entry_.load(std::memory_order_acquire); }

  std::atomic<bool> used{false};            // an operation has read it
  std::atomic<bool> computed{false};        // and did more than move or compare it
  std::atomic<bool> propagated{false};      // and made more of it than -inf
  std::atomic<bool> looked_for{false};      // user code has checked for it: isnan(x), isfinite(x), x == x
  std::atomic<bool> expected{false};        // user code has compared it with a mask: x == full(-inf)
  std::atomic<bool> compared{false};        // user code has checked a gradient: isfinite(x), norm > limit
  std::atomic<bool> overwritten{false};     // somewhere; if it was not used, it was never seen
  std::atomic<bool> reported{false};        // one alarm per cause
  std::atomic<bool> seen_by_scaler{false};  // a loss scaler has made or checked it, and decides
  std::atomic<bool> exempt{false};          // never reported: the results of its operator are not checked

  // May be intentional: any constant, and a mask that came in. A +inf, a value in a weight, or one that has done harm,
  // is never a mask.
  bool is_intentional() const {
    if (source == Source::kConstant) return true;
    return source == Source::kExternal && kinds == NonfiniteKinds::only_neginf() && !unwritten && !parameter &&
           !foreign && !reported;
  }

  // Which of two causes to report: an accident before an intentional value, then the older one.
  bool takes_precedence_over(const OriginRecord& other) const {
    if (is_intentional() != other.is_intentional()) return other.is_intentional();
    return sequence < other.sequence;
  }

 private:
  std::atomic<const Entry*> entry_{nullptr};
};

struct Step {
  const OpPlan* plan = nullptr;
  SiteId site = 0;
};

// The first operation on the way that made a NaN of an Inf.
struct FirstNan {
  const OpPlan* plan = nullptr;
  Site site;
};

// An origin, and the operations that passed its values on.
struct Cause {
  static constexpr size_t kKeptSteps = 7;

  std::shared_ptr<OriginRecord> origin;
  NonfiniteKinds kinds;                     // among the values at the end of the path
  std::vector<Step> steps{};                // the first few after the origin, then the last
  int64_t omitted = 0;                      // between the last two of steps
  std::optional<Step> first_computation{};  // the first one that did more than move the values
  std::shared_ptr<const FirstNan> first_nan{};
  uint64_t node_execution_id = 0;  // the backward node that computed them last; 0 if there is none
  std::shared_ptr<const ReplayedRegion> region_of_computation{};

  // Returns the cause one step later. `kinds` are those of the values there.
  Cause extended(Step step, bool is_data_movement, NonfiniteKinds kinds) const;
};

// The causes of the non-finite values of one tensor, the one to report first. Immutable; shared by the tensors of one
// output.
class Provenance {
 public:
  static constexpr size_t kMaxCauses = 4;

  explicit Provenance(Cause cause) : Provenance(std::vector<Cause>{std::move(cause)}) {}
  explicit Provenance(std::vector<Cause> causes, bool is_pending = false);  // one at least

  const Cause& first() const { return causes_.front(); }
  const std::vector<Cause>& causes() const { return causes_; }
  // The kinds that the values may be of by now: an Inf may have become a NaN.
  NonfiniteKinds possible_kinds() const {
    NonfiniteKinds kinds = NonfiniteKinds::only_nan();
    for (const Cause& cause : causes_) kinds |= cause.kinds;
    return kinds;
  }
  // Whether it may be the provenance of values of these kinds, unchanged: a mask explains no others than its own.
  bool explains(NonfiniteKinds there) const {
    NonfiniteKinds kinds;
    for (const Cause& cause : causes_) kinds |= cause.kinds;
    return !is_intentional() || !there.without(kinds).any();
  }
  // The values are not there yet: a collective that is under way will put them there.
  bool pending() const { return is_pending_; }
  bool is_intentional() const {
    return std::all_of(causes_.begin(), causes_.end(),
                       [](const Cause& cause) { return cause.origin->is_intentional(); });
  }

 private:
  std::vector<Cause> causes_;
  bool is_pending_;
};

}  // namespace torchnan
