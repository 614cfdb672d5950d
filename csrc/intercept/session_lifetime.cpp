#include "intercept/session_lifetime.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ScopeExit.h>

#include "intercept/harm_checks.h"
#include "device/devices.h"
#include "device/resolve.h"
#include "base/environment.h"
#include "intercept/install_interceptor.h"
#include "base/dispatch_key.h"
#include "check/bounds/bound_cache.h"
#include "origin/collectives.h"
#include "origin/nonfinite_registry.h"
#include "detection/error_containment.h"
#include "detection/thread_state.h"

namespace torchnan {

namespace {

// The callback of a finding may enter and leave a session in the middle of an operation, which still needs its session.
void remove_closed_sessions(ThreadState& thread) {
  if (!c10::impl::tls_is_dispatch_key_excluded(kInterceptorKey)) thread.remove_closed_sessions();
}

}  // namespace

std::shared_ptr<DetectionSession> make_session(Options options) {
  if (!is_disabled()) install_interceptor();
  return std::make_shared<DetectionSession>(std::move(options));
}

void enter_session(std::shared_ptr<DetectionSession> session) {
  if (is_disabled()) return;
  ThreadState& thread = ThreadState::current();
  remove_closed_sessions(thread);
  thread.enter(std::move(session));
  c10::impl::tls_set_dispatch_key_included(kInterceptorKey, true);
}

void leave_session(const std::shared_ptr<DetectionSession>& session) {
  if (is_disabled()) return;
  ThreadState& thread = ThreadState::current();
  thread.leave(session);
  remove_closed_sessions(thread);
  if (thread.scopes().empty()) c10::impl::tls_set_dispatch_key_included(kInterceptorKey, false);
}

void end_session(const std::shared_ptr<DetectionSession>& session, bool report_pending) {
  struct ForgetAtLast {
    ~ForgetAtLast() {
      decltype(nonfinite_registry().take_all()) taken;  // destroyed after the lock is released
      call_unless_open([&] {
        taken = nonfinite_registry().take_all();
        bound_cache().clear();
        forget_collectives();
      });
    }
  } const forget_at_last;
  session->close();
  ThreadState::close(*session);
  const auto finish = c10::make_scope_exit([&] {  // a report may throw
    session->forget_kept();
    run_contained(*session, "ending the log", [&] { session->log().end(); });
  });
  // A program that fails with its device has not been told why.
  if (report_pending || devices().has_lost()) report_at_end_on_devices(*session);
  if (open_scopes() == 0) forget_all_events(*session);
  if (report_pending) report_at_end_on_host(*session);
}

}  // namespace torchnan
