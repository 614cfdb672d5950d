// Decides which results of a call are finite if a device takes part in it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include "device/device_check.h"
#include "intercept/host_results.h"

namespace torchnan {

// Has the interface of HostResults, which it uses for results on the host. Results on devices are recorded and handed
// to the scan: nothing waits for the device.
class DeviceResults {
 public:
  static constexpr bool kOnDevices = true;

  // Whether a call with these keys must be checked by this class.
  static bool concerns(c10::DispatchKeySet keys) { return DeviceCheck::concerns(keys); }

  DeviceResults(const OpPlan& plan, ThreadState& thread, DetectionSession& session, SiteId site)
      : on_host_(plan, thread, session, site), on_device_(plan, thread, session, site) {}

  bool needs_arguments() const { return true; }
  void prepare(c10::ArrayRef<Operand> arguments);
  Outcome check(const at::Tensor& result, int64_t output, bool masks_are_known);
  void forget(const at::Tensor& tensor);
  using TensorAt = DeviceCheck::TensorAt;
  void find_bad_arguments(TensorAt tensor_at, c10::SmallVectorImpl<BadArgument>& bad_arguments);
  void finish() { on_device_.finish(); }

 private:
  HostResults on_host_;
  DeviceCheck on_device_;
};

}  // namespace torchnan
