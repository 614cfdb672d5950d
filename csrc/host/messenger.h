// How findings reach the program: as an exception, as a warning. The host (Python) plugs in its own.
#pragma once

#include <string>

#include <torchnan/export.h>
#include <torchnan/finding.h>

namespace torchnan {

// Base of what is thrown at the program on purpose: NonFiniteError, Ctrl-C. All else that is thrown inside torchnan is
// a failure of its own, and ends there (watch/contain.h).
class TORCHNAN_API MeantForProgram {
 public:
  virtual ~MeantForProgram();
};

// What cannot be told is thrown, as any failure.
class TORCHNAN_API Messenger {
 public:
  virtual ~Messenger() = default;
  // Throws what the host understands as NonFiniteError, and is meant for the program.
  [[noreturn]] virtual void raise(const Finding& finding) = 0;
  virtual void warn(const Finding& finding) = 0;
  virtual void warn(const std::string& text) = 0;
};

// The host's messenger; without a host one that throws C++ exceptions and warns through c10.
TORCHNAN_API Messenger& messenger();
TORCHNAN_API void plug_in(Messenger* host);  // must live until the process ends

}  // namespace torchnan
