// Checks for harm outside of operations: roots of a backward pass, gradients and optimizer state, guards, the end of a
// session. Each checks tensors on the host and on devices.
#pragma once

#include <functional>
#include <optional>
#include <source_location>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <torchnan/export.h>
#include <torchnan/finding.h>

#include "detection/session.h"

namespace torchnan {

// Reports non-finite roots, whether or not their operation was observed. gradients[i], if given, is the gradient that
// the backward pass starts from: elements where it is zero do not count.
TORCHNAN_API void report_backward_roots(DetectionSession& session, c10::ArrayRef<at::Tensor> roots,
                                        c10::ArrayRef<at::Tensor> gradients);

// Reports the recorded non-finite tensors among `tensors` as harm of this kind; name_of(i) names tensors[i] in the
// report. For gradients, optimizer state, and values read by a host.
TORCHNAN_API void report_tensors(DetectionSession& session, HarmKind kind, c10::ArrayRef<at::Tensor> tensors,
                                 const std::function<std::string(size_t)>& name_of);

// Reports `tensor` if it is not finite, whether or not its operation was observed.
void report_guard(DetectionSession& session, const at::Tensor& tensor, const std::string& name,
                  const std::source_location* where = nullptr);

// Returns the finding of the cause of the tensor's non-finite values, without reporting it; nothing if it holds none.
// Waits for the devices.
TORCHNAN_API std::optional<Finding> find_origin(DetectionSession& session, const at::Tensor& tensor);

// Finds the causes of what devices have found so far, while the session is still open: compiled regions may be replayed
// in it. Waits for the devices.
TORCHNAN_API void resolve_pending(const DetectionSession& session);

// At the end of a session, reports the events on devices and the device tensors that user code still references.
void report_at_end_on_devices(DetectionSession& session);

// At the end of a session, reports host tensors that user code still references as errors, and values that were never
// used as warnings. All findings are kept before the first error is acted upon.
void report_at_end_on_host(DetectionSession& session);

}  // namespace torchnan
