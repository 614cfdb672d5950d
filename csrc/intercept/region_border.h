// The border of a compiled region: its results are checked. If the region cannot be followed, its results are new
// origins.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <torchnan/export.h>

#include "detection/session.h"
#include "detection/thread_state.h"
#include "device/device_check.h"
#include "base/runtime.h"
#include "check/operators/op_plan.h"
#include "origin/nonfinite_registry.h"
#include "origin/replayed_region.h"
#include "check/scan/nonfinite_kinds.h"

namespace torchnan {

// Checks a plain tensor that a region has returned or written, on the session's thread; returns the kinds in it.
// `is_unwritten`: the records about its memory still hold.
TORCHNAN_API NonfiniteKinds check_region_result(const at::Tensor& tensor, bool is_unwritten, ThreadState& thread);

// Records what a region on a device is about to read. Scans values whose last write was not observed. Does not wait for
// the device.
TORCHNAN_API DeviceCheck::Arguments record_region_arguments(DetectionSession& session,
                                                            c10::ArrayRef<at::Tensor> tensors);

// Records that comparisons in a region depend on these arguments. Does not wait for the device.
TORCHNAN_API void record_region_comparison(DetectionSession& session, c10::ArrayRef<at::Tensor> tensors);

// Returns the provenance of the first of these arguments that is not finite; null if there is none. Waits.
TORCHNAN_API NonfiniteRegistry::ProvenancePtr provenance_on_devices(const DeviceCheck::Arguments& arguments);

// A plain tensor that a region has returned or written.
struct RegionResult {
  size_t index;
  at::Tensor tensor;
  bool is_unwritten;       // the region writes no argument with its memory
  NonfiniteKinds kinds{};  // of the values on a device, if they were asked for
  bool is_on_device = false;
};

// Sets the kinds of the results that are on devices. Waits for the devices.
TORCHNAN_API void find_kinds_on_devices(std::vector<RegionResult>& results);

// Returns the kinds that a tensor holds. Waits if it is on a device.
TORCHNAN_API NonfiniteKinds kinds_anywhere(const at::Tensor& tensor);

// Records the results of a region that are on devices, and launches their scans; sets `is_on_device` for them. If an
// alarm finds that the region made a non-finite value, the report names `region`. Results whose kinds are known are
// left out: set_region_provenance() records them. Removes views of arguments: the region has not made their values.
TORCHNAN_API void record_results_on_devices(DetectionSession& session, const DeviceCheck::Arguments& arguments,
                                            std::vector<RegionResult>& results,
                                            std::shared_ptr<const ReplayedRegion> region);

// Records that the values were first seen in result number `output` of `region`, which is being called. With
// when="origin" this is reported.
TORCHNAN_API void record_border_origin(DetectionSession& session, const at::Tensor& result, int64_t output,
                                       const ReplayedRegion& region);

// Records that the generated code of the region which this thread replays has made `result`, with an operator that
// gives finite values when it runs alone.
TORCHNAN_API void record_fused_origin(DetectionSession& session, const at::Tensor& result, const std::string& op);

// Records the origin of a value that a region has returned or written, as found by a replay. The replay's own values
// are gone, and were not used.
TORCHNAN_API void set_region_provenance(DetectionSession& session, const at::Tensor& result,
                                        const NonfiniteRegistry::ProvenancePtr& provenance);

// Returns the provenance of a gradient whose replay has run the forward pass again. It uses the origins found before
// for the results of that pass: an operation has one origin, which is reported once.
TORCHNAN_API NonfiniteRegistry::ProvenancePtr with_origins_of_forward_pass(
    const NonfiniteRegistry::ProvenancePtr& gradient, const std::vector<NonfiniteRegistry::ProvenancePtr>& forward);

// A non-finite argument of a region: its provenance in an earlier call and in this one.
struct RegionArgument {
  NonfiniteRegistry::ProvenancePtr then;
  NonfiniteRegistry::ProvenancePtr now;
};

// Returns the provenance of values that arose in this call of a region as in an earlier one: values from an argument
// get the current causes of that argument. `is_checked`: this call was
// compared with the earlier one.
TORCHNAN_API std::vector<NonfiniteRegistry::ProvenancePtr> repeated_in_this_call(
    DetectionSession& session, const std::vector<NonfiniteRegistry::ProvenancePtr>& earlier,
    const std::vector<RegionArgument>& arguments, bool is_checked);

// Records that a region is about to compute with an argument, if it is known to be non-finite. `is_compared`: a
// comparison in the region depends on it.
TORCHNAN_API void record_region_use(const at::Tensor& argument, bool is_compared);

// Returns the plan of an operator that allocates, as far as records of memory that a region allocates need it.
TORCHNAN_API OpPlan allocation_plan(std::string op);

// Records that a region has returned memory that it allocated but did not write: at `site`, by an operator whose plan
// must outlive all records.
TORCHNAN_API void record_region_allocation(DetectionSession& session, const at::Tensor& result, SiteId site,
                                           const OpPlan& op);

// Copies the record of a non-finite or uninitialized tensor to its copy.
TORCHNAN_API void record_copy(const at::Tensor& tensor, const at::Tensor& copy);

// Returns the provenance of an argument of a region that cannot be followed; null if the argument is finite.
TORCHNAN_API NonfiniteRegistry::ProvenancePtr record_region_input(DetectionSession& session,
                                                                  const at::Tensor& argument);

}  // namespace torchnan
