// Collectives on the host: the values that this rank sends, and the origin of the values that it receives.
//
// A collective writes its outputs after the call has returned, on a thread that is not intercepted. Its outputs are
// therefore marked as pending before it starts, and attributed when they are first read: to the causes that this rank
// has sent, to the collective itself if its result may have overflowed, or else to another rank.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <torchnan/export.h>

#include "detection/thread_state.h"
#include "origin/attribution.h"
#include "origin/nonfinite_registry.h"
#include "check/operators/op_plan.h"

namespace torchnan {

// How a collective combines the values of the ranks, if the result can overflow.
enum class Reduction : uint8_t { kNone, kSum, kProduct };

// The facts in the arguments of a collective.
struct CollectiveCall {
  int64_t rank = 0;   // of this process in the group
  int64_t ranks = 1;  // in the group
  std::optional<int64_t> root{};
  Reduction reduction = Reduction::kNone;
  std::vector<int64_t> output_splits{};  // rows that each rank sends to this one; empty if all send as many
};

// Reads the arguments of a collective. Without a process group it counts as one of a single rank.
CollectiveCall read_collective_call(const OpPlan& plan, c10::ArrayRef<c10::IValue> arguments);

// The Work that a collective has returned. Keeps it as little alive as a tensor.
using StartedWork = c10::weak_intrusive_ptr<c10::intrusive_ptr_target>;

inline StartedWork no_work() { return StartedWork(c10::intrusive_ptr<c10::intrusive_ptr_target>()); }

// Returns the Work among the results of a collective, or no_work().
StartedWork started_work(c10::ArrayRef<c10::IValue> results);

// Whether it exists and is known not to have completed: nobody has waited for it yet.
bool is_running(const StartedWork& work);

// The elements that were sent and are so large that the sum or product may overflow; null if they are too many.
using LargeElements = std::shared_ptr<const std::vector<int64_t>>;

// One call of a collective.
class HostCollective {
 public:
  // `arguments` are all arguments of the call, in the order of the schema.
  HostCollective(const CallContext& call, c10::ArrayRef<c10::IValue> arguments, ThreadState& thread);

  // Scans the tensors that this rank sends. Appends the non-finite ones to `bad_arguments`.
  void inspect_sent(c10::SmallVectorImpl<BadArgument>& bad_arguments);

  // Marks the arguments that the collective will write. Call it before the collective starts.
  void expect_received(c10::ArrayRef<BadArgument> bad_arguments);

  // Marks a new tensor that the collective has returned.
  void expect_result(const at::Tensor& result, c10::ArrayRef<BadArgument> bad_arguments);

  // Remembers the Work that the collective has returned.
  void follow(c10::ArrayRef<c10::IValue> results);

 private:
  bool is_read(const OpPlan::CollectiveArgument& argument) const;
  bool is_written(const OpPlan::CollectiveArgument& argument) const;
  // `position`: of the tensor in the argument.
  void inspect(const at::Tensor& sent, int64_t position, const OpPlan::CollectiveArgument& argument,
               c10::SmallVectorImpl<BadArgument>& bad_arguments);
  // Whether this rank receives one of these sums.
  bool may_come_back(const at::Tensor& sent, int64_t position, const OpPlan::CollectiveArgument& argument,
                     const LargeElements& large) const;
  void expect(const at::Tensor& received, int64_t position, const c10::IValue& argument, bool is_sent,
              c10::ArrayRef<BadArgument> bad_arguments);
  // Returns the parts of a result that may have the non-finite values which this rank has sent: of a reduction single
  // elements if few are bad, else one part. `is_sent`: whether it is an argument that the collective reads, too.
  std::vector<at::Tensor> own_parts(const at::Tensor& values, int64_t position, const c10::IValue& argument,
                                    bool is_sent, c10::ArrayRef<BadArgument> bad_arguments) const;
  // Returns the elements of a reduction's result for which this rank has sent non-finite ones; nothing if that is not
  // known, if they are many or all, or if the result has too many elements.
  std::optional<std::set<int64_t>> own_elements(const at::Tensor& values, bool is_sent,
                                                c10::ArrayRef<BadArgument> bad_arguments) const;
  // The same for one tensor that it has sent.
  std::optional<std::set<int64_t>> own_elements(const at::Tensor& sent) const;
  // Returns the part that has the place of this rank, or the whole result. Undefined if there is none.
  at::Tensor own_part(const at::Tensor& values, int64_t position, const c10::IValue& argument) const;

  const CallContext call_;
  ThreadState& thread_;
  const CollectiveCall facts_;
  const CollectiveTraits traits_;
  std::shared_ptr<StartedWork> work_ = std::make_shared<StartedWork>(no_work());
  at::Tensor may_overflow_;  // a sent tensor, so large that the sum or product may overflow
  c10::SmallVector<std::pair<at::Tensor, LargeElements>, 1> large_;  // of each such tensor that is also the result
  std::shared_ptr<OriginRecord> origin_;                             // the origin of that result
};

// Records a tensor that this rank is about to send inside an object.
TORCHNAN_API void record_sent_in_object(DetectionSession& session, const at::Tensor& tensor);

// Marks a tensor that was made of the bytes which this thread's last collective has brought. If this rank has sent the
// same bytes itself, the tensor has the causes of what was sent.
TORCHNAN_API void record_received_in_object(const at::Tensor& values);

// Returns the origin of an infinite sum or product that a collective has written, or is about to write, to `target`;
// null if this rank has sent no sufficiently large value. `values` hold the result: `target` itself, or internal memory
// of the collective.
std::shared_ptr<OriginRecord> overflowed_reduction(const at::Tensor& target, const at::Tensor& values,
                                                   NonfiniteKinds kinds);

// Whether a collective has written memory of this process since the first session.
TORCHNAN_API bool has_received() noexcept;

// Records the non-finite results of collectives that no operation has read yet, and returns them. `call` stands for
// their reader.
std::vector<NonfiniteRegistry::ProvenancePtr> remember_unread(const CallContext& call);

// Memory that was never written: where it was allocated, and by which operator.
struct Allocation {
  SiteId site = 0;
  const std::string* op = nullptr;
  const std::string* unfinished = nullptr;  // a collective that will write there, and has not completed
};

// Returns the allocation of a tensor that is the result of a collective, if a non-finite value of it lies where no
// collective has written yet.
std::optional<Allocation> allocation_of_unwritten(const at::Tensor& received);

// Marks the values of a sparse tensor that no operation has made as the result of the last sparse collective: gloo
// returns new tensors.
void expect_sparse_result(const at::Tensor& values);

// Forgets all results and what was sent, after the last session.
void forget_collectives();

}  // namespace torchnan
