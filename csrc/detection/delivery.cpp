#include "detection/delivery.h"

#include <utility>

#include "detection/user_notifier.h"
#include "report/truncate.h"
#include "detection/error_containment.h"
#include "detection/thread_state.h"

namespace torchnan {
namespace {

// Adds the finding to the log of every scope. Returns true if it is new in the session's log, or could not be added
// there.
bool keep(DetectionSession& session, const Finding& finding) {
  bool is_new = true;
  const auto add = [&](DetectionSession& scope) {
    run_contained(scope, "keeping a finding", [&] {
      const bool is_new_there = scope.log().add(finding);
      if (&scope == &session) is_new = is_new_there;
    });
  };
  for (const auto& scope : ThreadState::current().scopes()) {
    if (scope.get() != &session) add(*scope);
  }
  add(session);
  return is_new;
}

// A failed warning is only counted.
void warn(const DetectionSession& session, const Finding& finding) {
  try {
    user_notifier().warn(finding);
  } catch (...) {
    rethrow_if_user_facing();
    session.count_unreported_error();
  }
}

bool raises(const DetectionSession& session, const Finding& finding) {
  const Options& options = session.options();
  return !options.callback && options.action == Action::kRaise && finding.level == Level::kError;
}

void act(DetectionSession& session, const Finding& finding, bool is_new) {
  const Options& options = session.options();
  if (options.callback) {
    run_contained(session, "the action of a finding", [&] { options.callback(finding); });
    return;
  }
  switch (options.action) {
    case Action::kRaise:
      if (finding.level == Level::kError) user_notifier().raise(finding);
      [[fallthrough]];  // a finding of another level is a warning
    case Action::kWarn:
      if (is_new && finding.level != Level::kNote) warn(session, finding);
      return;
    case Action::kLog:
      return;
    case Action::kBreakpoint:
      run_contained(session, "the action of a finding", [&] { user_notifier().stop_in_debugger(finding); });
      return;
  }
}

}  // namespace

void deliver(DetectionSession& session, Finding finding) {
  truncate(finding, kKeptLength);
  const bool is_new = keep(session, finding);
  act(session, finding, is_new);
}

void deliver_deferred(DetectionSession& session, std::vector<Finding> findings) {
  for (Finding& finding : findings) {
    truncate(finding, kKeptLength);
    const bool is_new = keep(session, finding);
    run_contained(session, "delivering a finding", [&] {
      if (raises(session, finding)) {
        session.defer(std::move(finding));
      } else {
        act(session, finding, is_new);
      }
    });
  }
}

void raise_deferred(DetectionSession& session) {
  if (const auto finding = session.take_deferred()) user_notifier().raise(*finding);
}

void deliver_all(DetectionSession& session, std::vector<Finding> findings) {
  std::vector<bool> is_new;
  is_new.reserve(findings.size());
  for (Finding& finding : findings) {
    truncate(finding, kKeptLength);
    is_new.push_back(keep(session, finding));
  }
  const auto act_on = [&](bool errors) {
    for (size_t i = 0; i < findings.size(); ++i) {
      if ((findings[i].level == Level::kError) != errors) continue;
      run_contained(session, "delivering a finding", [&] { act(session, findings[i], is_new[i]); });
    }
  };
  act_on(false);  // warnings come first: an error ends the loop
  act_on(true);
}

}  // namespace torchnan
