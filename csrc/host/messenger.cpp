#include "host/messenger.h"

#include <atomic>

#include <c10/util/Exception.h>

#include <torchnan/detector.h>

namespace torchnan {
namespace {

class NativeMessenger final : public Messenger {
 public:
  void raise(const Finding& finding) override { throw NonFiniteError(finding); }
  void warn(const Finding& finding) noexcept override {
    try {
      warn(to_text(finding));
    } catch (...) {  // out of memory
    }
  }
  void warn(const std::string& text) noexcept override {
    try {
      TORCH_WARN(text);
    } catch (...) {  // a handler that makes errors of warnings; here there is nobody to take one
    }
  }
};

NativeMessenger native;
std::atomic<Messenger*> plugged_in{&native};

}  // namespace

Messenger& messenger() { return *plugged_in.load(std::memory_order_acquire); }
void plug_in(Messenger* host) { plugged_in.store(host, std::memory_order_release); }

}  // namespace torchnan
