// The life of a non-finite value: where it came from, and through which operations it went.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <torchnan/finding.h>

#include "check/kinds.h"
#include "host/program.h"

namespace torchnan {

struct OpPlan;
class Watch;

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
  c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>()};  // where it was found
  bool scalar = false;                                                                        // without dimensions
  bool parameter = false;  // a leaf that requires grad
  bool unwritten = false;  // the memory came from empty() and nobody wrote it
  bool foreign = false;    // the memory was known to be finite before, or a compiled graph wrote it
  Site allocation;         // of unwritten memory
  std::string allocator;   // the op that gave it out

  std::atomic<bool> used{false};      // an operation has read it
  std::atomic<bool> reported{false};  // one alarm per cause
  std::atomic<bool> excused{false};   // a loss scaler has dealt with it, or its maker is never judged

  // May be there on purpose: an Inf that nobody computed, or any constant. Nobody makes a weight infinite.
  bool deliberate() const {
    if (source == Source::kConstant) return true;
    return source == Source::kExternal && !kinds.nan() && !unwritten && !parameter && !foreign;
  }
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
