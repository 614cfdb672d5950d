// The life of a non-finite value: where it came from, and through which operations it went.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torchnan/finding.h>

#include "scan/nonfinite_kinds.h"
#include "host/host_runtime.h"

namespace torchnan {

struct OpPlan;
struct ReplayedRegion;
class DetectionSession;

// How a value that no operation made came to be computed with: the first operation that did more than move it.
struct Entry {
  Finding facts;               // op, place, node, step
  std::optional<Owner> owner;  // of the tensor it was read from
};

// What is known of an origin when it is recorded.
struct OriginFacts {
  enum class Source : uint8_t {
    kOperation,  // made by arithmetic
    kConstant,   // written in the program: full(-inf), a mask, torch.tensor(nan)
    kExternal,   // was there when first read: data, a weight, unwritten memory
  };

  uint64_t sequence = 0;  // order of birth in the process
  Source source = Source::kOperation;
  NonfiniteKinds kinds;
  Finding facts;  // all that is known at birth; the modules it names may be gone when harm is done
  Site site;
  std::weak_ptr<DetectionSession> session;  // the scope it was born in

  bool scalar = false;                           // without dimensions
  bool written_in_place = false;                 // by an operation that writes into an argument: x[i] = v
  bool taken_over = false;                       // constant: in memory that is not PyTorch's, as from_numpy() takes it
  SiteId written = 0;                            // external: where the program wrote it into a weight, if that was seen
  std::optional<Owner> owner;                    // external: of the tensor it was first seen in
  bool parameter = false;                        // external: a leaf that requires grad
  bool unwritten = false;                        // external: the memory came from empty() and nobody wrote it
  bool foreign = false;                          // external: the memory was finite before, or a compiled graph wrote it
  bool border = false;                           // external: came out of a compiled region that could not be followed
  std::shared_ptr<const ReplayedRegion> region;  // the compiled region that made it; null outside of all
  Site allocation;                               // of unwritten memory
  std::string allocator;                         // the op that allocated it
  std::string collective;                        // external: that received it from another rank
  bool received = false;                         // from another process, which made it
};

// Where non-finite values came from: one per cause.
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
  std::atomic<bool> computed{false};        // and done more than move or compare it
  std::atomic<bool> propagated{false};      // and has made more of it than -inf
  std::atomic<bool> looked_for{false};      // user code has asked whether it is there: isnan(x), isfinite(x), x == x
  std::atomic<bool> compared{false};        // user code has looked at a gradient: isfinite(x), norm > limit
  std::atomic<bool> overwritten{false};     // somewhere; if it is not used, nobody has seen it
  std::atomic<bool> reported{false};        // one alarm per cause
  std::atomic<bool> seen_by_scaler{false};  // a loss scaler has made or checked it, and decides
  std::atomic<bool> exempt{false};          // never reported: what its producer makes is not checked

  // May be there on purpose: any constant, and a mask that came in. Nobody masks with +inf, or in a weight.
  bool is_intentional() const {
    if (source == Source::kConstant) return true;
    return source == Source::kExternal && kinds == NonfiniteKinds::only_neginf() && !unwritten && !parameter &&
           !foreign;
  }

  // Of two causes that meet, the one to report: an accident before a design, then the older.
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

// An origin, and the operations on the way from there.
struct Cause {
  static constexpr size_t kKeptSteps = 7;

  std::shared_ptr<OriginRecord> origin;
  NonfiniteKinds kinds;                     // among the values at the end of the way
  std::vector<Step> steps{};                // the first few after the origin, then the last
  int64_t omitted = 0;                      // between the last two of steps
  std::optional<Step> first_computation{};  // that did more than move them
  std::optional<Step> first_nan{};          // that made a NaN of what was an Inf until then
  uint64_t node_execution_id = 0;           // of the backward node that computed them last; 0 if none did
  std::shared_ptr<const ReplayedRegion> region_of_computation{};

  // One step on. `kinds` are those among the values there.
  Cause extended(Step step, bool is_data_movement, NonfiniteKinds kinds) const;
};

// How the values of one tensor came to be non-finite: by what causes, the one to report first. Immutable; shared by
// the tensors of one output.
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
