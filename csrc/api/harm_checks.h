// The places outside of operations where a non-finite value does harm: roots of a backward pass, gradients and
// optimizer state, guards, the end of a session. Each looks at tensors of the host and of devices.
#pragma once

#include <functional>
#include <source_location>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <torchnan/export.h>
#include <torchnan/finding.h>

#include "detection/session.h"

namespace torchnan {

// Reports roots that are not finite, whether or not they were seen being made. gradients[i], if given, is what the
// backward pass starts from: elements with a zero there play no part.
TORCHNAN_API void report_backward_roots(DetectionSession& session, c10::ArrayRef<at::Tensor> roots,
                                        c10::ArrayRef<at::Tensor> gradients);

// Reports what is remembered as non-finite among `tensors` as harm of this kind; name_of(i) names tensors[i] in the
// report. For gradients, optimizer state, values read by a host.
TORCHNAN_API void report_tensors(DetectionSession& session, HarmKind kind, c10::ArrayRef<at::Tensor> tensors,
                                 const std::function<std::string(size_t)>& name_of);

// Reports `tensor` if it is not finite, whether or not it was seen being made.
void report_guard(DetectionSession& session, const at::Tensor& tensor, const std::string& name,
                  const std::source_location* where = nullptr);

// Reports, when a session ends, what has happened on devices and what user code still references there.
void report_at_end_on_devices(DetectionSession& session);

// Reports, when a session ends, what user code still references on the host as errors and what was never used as
// warnings. All are kept before the first error is acted upon.
void report_at_end_on_host(DetectionSession& session);

}  // namespace torchnan
