#include "host/user_notifier.h"

#include <atomic>

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
};

NativeNotifier native;
std::atomic<UserNotifier*> host_is_set{&native};

}  // namespace

UserFacingException::~UserFacingException() = default;

UserNotifier& user_notifier() { return *host_is_set.load(std::memory_order_acquire); }
void set_host(UserNotifier* host) { host_is_set.store(host, std::memory_order_release); }

}  // namespace torchnan
