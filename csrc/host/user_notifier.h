// How findings reach the program: as an exception, as a warning. The host (Python) plugs in its own.
#pragma once

#include <string>

#include <torchnan/export.h>
#include <torchnan/finding.h>

namespace torchnan {

// Base of what is thrown at the program on purpose: NonFiniteError, Ctrl-C. All else that is thrown inside torchnan is
// a failure of its own, and ends there (detection/error_containment.h).
class TORCHNAN_API UserFacingException {
 public:
  virtual ~UserFacingException();
};

// What cannot be told is thrown, as any failure.
class TORCHNAN_API UserNotifier {
 public:
  virtual ~UserNotifier() = default;
  // Throws what the host understands as NonFiniteError, and is meant for the program.
  [[noreturn]] virtual void raise(const Finding& finding) = 0;
  virtual void warn(const Finding& finding) = 0;
  virtual void warn(const std::string& text) = 0;
};

// The host's user notifier; without a host one that throws C++ exceptions and warns through c10.
TORCHNAN_API UserNotifier& user_notifier();
TORCHNAN_API void set_host(UserNotifier* host);  // must live until the process ends

}  // namespace torchnan
