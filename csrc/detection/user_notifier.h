// Raises exceptions and prints warnings for findings. The runtime (Python) sets its implementation.
#pragma once

#include <string>

#include <torchnan/export.h>
#include <torchnan/finding.h>

namespace torchnan {

// Base of the exceptions for user code: NonFiniteError, Ctrl-C. Any other exception inside torchnan is
// an internal error and ends there (detection/error_containment.h).
class TORCHNAN_API UserFacingException {
 public:
  virtual ~UserFacingException();
};

// A notifier that fails throws; the exception is an internal error.
class TORCHNAN_API UserNotifier {
 public:
  virtual ~UserNotifier() = default;
  // Throws the NonFiniteError of the runtime.
  [[noreturn]] virtual void raise(const Finding& finding) = 0;
  virtual void warn(const Finding& finding) = 0;
  virtual void warn(const std::string& text) = 0;
  // Opens the debugger; returns when the user continues.
  virtual void stop_in_debugger(const Finding& finding) = 0;
};

// Returns the notifier of the runtime; without one, an object that throws C++ exceptions and warns through c10.
TORCHNAN_API UserNotifier& user_notifier();
TORCHNAN_API void set_user_notifier(UserNotifier* notifier);  // must live until the process ends

}  // namespace torchnan
