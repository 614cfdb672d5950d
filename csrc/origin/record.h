// The life of a non-finite value: where it came from, and through which operations it went.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torchnan/finding.h>

#include "check/kinds.h"
#include "host/program.h"

namespace torchnan {

struct OpPlan;
class Watch;

// How a value that no operation made came to be computed with: the first operation that did more than move it.
struct Entry {
  Finding facts;               // op, place, node, step
  std::optional<Owner> owner;  // of the tensor it was read from
};

// Where non-finite values came from: one per cause.
struct Root {
  enum class Source : uint8_t {
    kOperation,  // made by arithmetic
    kConstant,   // written in the program: full(-inf), a mask, torch.tensor(nan)
    kExternal,   // was there when first read: data, a weight, unwritten memory
  };

  uint64_t sequence = 0;  // order of birth in the process
  Source source = Source::kOperation;
  Kinds kinds;
  Finding facts;  // all that can be told at birth; the modules it names may be gone when harm is done
  Site site;
  std::weak_ptr<Watch> watch;  // the scope it was born in

  bool scalar = false;     // without dimensions
  bool parameter = false;  // external: a leaf that requires grad
  bool unwritten = false;  // external: the memory came from empty() and nobody wrote it
  bool foreign = false;    // external: the memory was finite before, or a compiled graph wrote it
  Site allocation;         // of unwritten memory
  std::string allocator;   // the op that gave it out

  // Set once, when the value enters computation.
  void enter(Entry entry);
  std::optional<Entry> entry() const;

  std::atomic<bool> used{false};      // an operation has read it
  std::atomic<bool> reported{false};  // one alarm per cause
  std::atomic<bool> excused{false};   // a loss scaler has dealt with it, or its maker is never judged

  // May be there on purpose: any constant, and an Inf that came in. Nobody makes a weight infinite.
  bool deliberate() const {
    if (source == Source::kConstant) return true;
    return source == Source::kExternal && !kinds.nan() && !unwritten && !parameter && !foreign;
  }

  // Of two causes that meet, the one to be told: an accident before a design, then the older.
  bool outranks(const Root& other) const {
    if (deliberate() != other.deliberate()) return other.deliberate();
    return sequence < other.sequence;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Entry> entry_;
};

struct Step {
  const OpPlan* plan = nullptr;
  SiteId site = 0;
};

// How the values of one tensor came to be non-finite. Immutable; shared by the tensors of one output.
class Record {
 public:
  explicit Record(std::shared_ptr<Root> root) : root_(std::move(root)) {}

  // The record of a result of `step`, one of whose arguments had this record.
  std::shared_ptr<const Record> extended(Step step, bool moves_values) const;

  const std::shared_ptr<Root>& root() const { return root_; }
  const std::vector<Step>& steps() const { return steps_; }  // the first few after the origin, then the last
  int64_t omitted() const { return omitted_; }               // between the last two of steps()
  const Step* first_computation() const { return computed_ ? &first_computation_ : nullptr; }

 private:
  static constexpr size_t kKept = 6;

  std::shared_ptr<Root> root_;
  std::vector<Step> steps_;
  int64_t omitted_ = 0;
  bool computed_ = false;  // more than moved about
  Step first_computation_;
};

}  // namespace torchnan
