// A call on small, ordinary tensors: nearly all calls of a program that is limited by their number.
#pragma once

#include <optional>

#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/ArrayRef.h>

#include "check/operators/op_plan.h"
#include "detection/thread_state.h"
#include "intercept/host_results.h"
#include "check/scan/tensor_scan.h"

namespace torchnan {

// Such a program is limited by instruction fetch, so this is short: it computes no bounds, scans the results while they
// are in the nearest cache, and leaves everything else to the other calls.
class SmallCall {
 public:
  SmallCall() : thread_(ThreadState::current()), session_(thread_.session()) {}

  ThreadState& thread() const { return thread_; }
  DetectionSession* session() const { return session_; }  // null: this thread has no session

  static bool is_small(const at::Tensor& tensor) {
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    return is_dense_on_host(impl) && impl.numel() <= kSmall;
  }
  static bool is_small(const at::ITensorListRef& tensors);
  static bool is_small(const at::TensorList& tensors) { return is_small(at::ITensorListRef(tensors)); }
  static bool is_small(const c10::SymIntArrayRef& sizes);  // of a result
  // A tensor that is made or copied to a device is not on the host, whatever the other arguments are.
  static bool is_small(const std::optional<c10::Device>& device) { return !device || device->is_cpu(); }
  template <typename NoTensor>
  static bool is_small(const NoTensor&) {
    return true;
  }

  // Starts the call if it is an ordinary one: its tensors are on the host, nothing non-finite is recorded, and the
  // tensor that it overwrites, or hands to user code, is known to be finite. Only the first argument may be such a
  // tensor.
  bool try_start(const OpPlan& plan, const at::Tensor& first, c10::DispatchKeySet keys);

  // Records the finite results and passes over integers, in order, up to the first result that is neither. Returns
  // their number.
  size_t check(c10::ArrayRef<const at::Tensor*> results);

  // Forgets the bounds of the tensors that the call writes, because it has failed.
  void forget() const noexcept;

 private:
  ThreadState& thread_;
  DetectionSession* const session_;
  // For a call that was started:
  const OpPlan* plan_ = nullptr;
  const at::Tensor* first_ = nullptr;
};

}  // namespace torchnan
