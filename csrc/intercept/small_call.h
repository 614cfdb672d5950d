// A call on small tensors of which nothing unusual is known: nearly all calls of a program that is bound by their
// number.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/ArrayRef.h>

#include "operators/op_plan.h"
#include "detection/thread_state.h"
#include "intercept/host_results.h"
#include "scan/tensor_scan.h"

namespace torchnan {

// Such a program waits for code to be fetched, so this is short: it bounds nothing, scans what was written while that
// is in the nearest cache, and leaves everything else to the calls that can do more.
class SmallCall {
 public:
  SmallCall() : thread_(ThreadState::current()), session_(thread_.session()) {}

  DetectionSession* session() const { return session_; }  // null: this thread works for none

  static bool is_small(const at::Tensor& tensor) {
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    return is_dense_on_host(impl) && impl.numel() <= kSmall;
  }
  template <typename NoTensor>
  static bool is_small(const NoTensor&) {
    return true;
  }

  // Starts the call if it is an ordinary one: its tensors are on the host, nothing non-finite is about, and what it
  // overwrites, or hands to user code, is known to be finite. Only the first argument may be one of these.
  bool try_start(const OpPlan& plan, const at::Tensor& first, c10::DispatchKeySet keys);

  // Records the results that are finite, in their order, up to the first that is not finite or not scanned. Returns
  // how many these are.
  size_t check(c10::ArrayRef<const at::Tensor*> results);

  // Forgets what the call writes: it has failed.
  void forget() const noexcept;

 private:
  ThreadState& thread_;
  DetectionSession* const session_;
  // Of a call that was started:
  const OpPlan* plan_ = nullptr;
  const at::Tensor* first_ = nullptr;
};

}  // namespace torchnan
