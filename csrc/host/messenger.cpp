#include "host/messenger.h"

#include <atomic>

#include <c10/util/Exception.h>

#include <torchnan/detector.h>

namespace torchnan {
namespace {

class RaisedError final : public NonFiniteError, public MeantForProgram {
 public:
  using NonFiniteError::NonFiniteError;
};

class NativeMessenger final : public Messenger {
 public:
  void raise(const Finding& finding) override { throw RaisedError(finding); }
  void warn(const Finding& finding) override { warn(to_text(finding)); }
  void warn(const std::string& text) override { TORCH_WARN(text); }
};

NativeMessenger native;
std::atomic<Messenger*> plugged_in{&native};

}  // namespace

MeantForProgram::~MeantForProgram() = default;

Messenger& messenger() { return *plugged_in.load(std::memory_order_acquire); }
void plug_in(Messenger* host) { plugged_in.store(host, std::memory_order_release); }

}  // namespace torchnan
