// Turns detection on and off, for Detector and for Python.
#pragma once

#include <memory>

#include <torchnan/export.h>
#include <torchnan/options.h>

#include "detection/session.h"

namespace torchnan {

// Makes a session without turning detection on. The options are valid: the caller has checked them. Throws
// std::system_error for a log file that cannot be opened, std::runtime_error if no dispatch key is free.
TORCHNAN_API std::shared_ptr<DetectionSession> make_session(Options options);

// Attaches the calling thread to the session.
TORCHNAN_API void enter_session(std::shared_ptr<DetectionSession> session);
TORCHNAN_API void leave_session(const std::shared_ptr<DetectionSession>& session);

// Ends the session; the calling thread must have left it. With `report_pending`, reports the values that are still
// alive, which may throw like any harm. When the last session ends, all records of tensors are dropped.
TORCHNAN_API void end_session(const std::shared_ptr<DetectionSession>& session, bool report_pending);

}  // namespace torchnan
