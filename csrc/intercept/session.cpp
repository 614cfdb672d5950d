#include "intercept/session.h"

#include <stdexcept>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "device/resolve.h"
#include "host/environment.h"
#include "intercept/dispatch_key.h"
#include "origin/harm.h"
#include "bounds/ledger.h"
#include "origin/lineage.h"
#include "watch/thread_state.h"

namespace torchnan {

namespace {

// A callback of a finding comes and goes in the middle of an operation, which still works for its watch.
void drop_closed(ThreadState& thread) {
  if (!c10::impl::tls_is_dispatch_key_excluded(kInterceptorKey)) thread.drop_closed();
}

}  // namespace

std::shared_ptr<Watch> make_watch(Options options) {
  const std::vector<std::string> faults = options.validate();
  if (!faults.empty()) throw std::invalid_argument(fmt::format("{}", fmt::join(faults, "; ")));
  if (!is_switched_off()) install_interceptor();
  return std::make_shared<Watch>(std::move(options));
}

void enter_watch(std::shared_ptr<Watch> watch) {
  if (is_switched_off()) return;
  ThreadState& thread = ThreadState::here();
  drop_closed(thread);
  thread.enter(std::move(watch));
  if (thread.scopes().size() == 1) c10::impl::tls_set_dispatch_key_included(kInterceptorKey, true);
}

void leave_watch(const std::shared_ptr<Watch>& watch) {
  if (is_switched_off()) return;
  ThreadState& thread = ThreadState::here();
  thread.leave(watch);
  drop_closed(thread);
  if (thread.scopes().empty()) c10::impl::tls_set_dispatch_key_included(kInterceptorKey, false);
}

void end_watch(const std::shared_ptr<Watch>& watch, bool judge) {
  struct ForgetAtLast {
    ~ForgetAtLast() {
      if (open_scopes() > 0) return;
      lineage().clear();
      ledger().clear();
    }
  } const forget_at_last;
  watch->close();
  ThreadState::close(*watch);
  end_on_devices(*watch, judge);
  if (judge) judge_end(*watch);
}

}  // namespace torchnan
