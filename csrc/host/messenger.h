// How findings reach the program: as an exception, as a warning. The host (Python) plugs in its own.
#pragma once

#include <string>

#include <torchnan/export.h>
#include <torchnan/finding.h>

namespace torchnan {

class TORCHNAN_API Messenger {
 public:
  virtual ~Messenger() = default;
  // Throws what the host understands as NonFiniteError.
  [[noreturn]] virtual void raise(const Finding& finding) = 0;
  // Warnings; these never throw.
  virtual void warn(const Finding& finding) noexcept = 0;
  virtual void warn(const std::string& text) noexcept = 0;
};

// The host's messenger; without a host one that throws C++ exceptions and warns through c10.
TORCHNAN_API Messenger& messenger();
TORCHNAN_API void plug_in(Messenger* host);  // must live until the process ends

}  // namespace torchnan
