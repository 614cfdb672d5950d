#include "detection/user_notifier.h"

#include <atomic>
#include <csignal>

#include <c10/util/Exception.h>

#include <torchnan/detector.h>

namespace torchnan {
namespace {

class RaisedError final : public NonFiniteError, public UserFacingException {
 public:
  using NonFiniteError::NonFiniteError;
};

class NativeNotifier final : public UserNotifier {
 public:
  void raise(const Finding& finding) override { throw RaisedError(finding); }
  void warn(const Finding& finding) override { warn(to_text(finding)); }
  void warn(const std::string& text) override { TORCH_WARN(text); }
  void stop_in_debugger(const Finding& finding) override {
    warn(finding);
    std::raise(SIGTRAP);
  }
};

NativeNotifier native_notifier;
std::atomic<UserNotifier*> current_notifier{&native_notifier};

}  // namespace

UserFacingException::~UserFacingException() = default;

UserNotifier& user_notifier() { return *current_notifier.load(std::memory_order_acquire); }
void set_user_notifier(UserNotifier* notifier) { current_notifier.store(notifier, std::memory_order_release); }

}  // namespace torchnan
