#include "detection/delivery.h"

#include <utility>

#include "host/user_notifier.h"
#include "report/truncate.h"
#include "detection/error_containment.h"
#include "detection/thread_state.h"

namespace torchnan {
namespace {

// Keeps it in the log of every scope. True if it is new in that of the session, or could not be kept there.
bool keep(DetectionSession& session, const Finding& finding) {
  bool is_new = true;
  const auto add = [&](DetectionSession& scope) {
    contain(scope, "keeping a finding", [&] {
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

// A warning that fails can hardly be warned of.
void warn(const DetectionSession& session, const Finding& finding) {
  try {
    user_notifier().warn(finding);
  } catch (...) {
    rethrow_if_user_facing();
    session.count_unreported_error();
  }
}

void act(DetectionSession& session, const Finding& finding, bool is_new) {
  const Options& options = session.options();
  if (options.callback) {
    contain(session, "the action of a finding", [&] { options.callback(finding); });
  } else if (options.action == Action::kRaise && finding.level == Level::kError) {
    user_notifier().raise(finding);
  } else if (options.action != Action::kLog && is_new) {
    warn(session, finding);
  }
}

}  // namespace

void deliver(DetectionSession& session, Finding finding) {
  truncate(finding, kKeptLength);
  const bool is_new = keep(session, finding);
  act(session, finding, is_new);
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
      contain(session, "telling of a finding", [&] { act(session, findings[i], is_new[i]); });
    }
  };
  act_on(false);  // what is only said comes first: an error ends the loop
  act_on(true);
}

}  // namespace torchnan
