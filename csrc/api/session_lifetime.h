// Turns detection on and off, for Detector and for Python.
#pragma once

#include <memory>

#include <torchnan/export.h>
#include <torchnan/options.h>

#include "detection/session.h"

namespace torchnan {

// Makes a session without turning anything on. Throws std::invalid_argument for options that cannot be used,
// std::system_error for a log file that cannot be opened, std::runtime_error if no dispatch key is free.
TORCHNAN_API std::shared_ptr<DetectionSession> make_session(Options options);

// Has the calling thread take part in the session until it leaves.
TORCHNAN_API void enter_session(std::shared_ptr<DetectionSession> session);
TORCHNAN_API void leave_session(const std::shared_ptr<DetectionSession>& session);

// Ends the session; the calling thread has left it. With `report_pending`, reports what is still alive, which may throw
// as any harm does. With the last session all that is remembered of tensors goes.
TORCHNAN_API void end_session(const std::shared_ptr<DetectionSession>& session, bool report_pending);

}  // namespace torchnan
