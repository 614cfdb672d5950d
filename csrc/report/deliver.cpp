#include "report/deliver.h"

#include <utility>

#include "host/messenger.h"
#include "report/shorten.h"
#include "watch/contain.h"
#include "watch/thread_state.h"

namespace torchnan {
namespace {

// Keeps it in the log of every scope. True if it is new in that of the watch, or could not be kept there.
bool keep(Watch& watch, const Finding& finding) {
  bool is_new = true;
  const auto add = [&](Watch& scope) {
    contain(scope, "keeping a finding", [&] {
      const bool is_new_there = scope.log().add(finding);
      if (&scope == &watch) is_new = is_new_there;
    });
  };
  for (const auto& scope : ThreadState::here().scopes()) {
    if (scope.get() != &watch) add(*scope);
  }
  add(watch);
  return is_new;
}

// A warning that fails can hardly be warned of.
void warn(const Watch& watch, const Finding& finding) {
  try {
    messenger().warn(finding);
  } catch (...) {
    let_through();
    watch.count_untold_error();
  }
}

void act(Watch& watch, const Finding& finding, bool is_new) {
  const Options& options = watch.options();
  if (options.callback) {
    contain(watch, "the action of a finding", [&] { options.callback(finding); });
  } else if (options.action == Action::kRaise && finding.level == Level::kError) {
    messenger().raise(finding);
  } else if (options.action != Action::kLog && is_new) {
    warn(watch, finding);
  }
}

}  // namespace

void deliver(Watch& watch, Finding finding) {
  shorten(finding, kKeptLength);
  const bool is_new = keep(watch, finding);
  act(watch, finding, is_new);
}

void deliver_all(Watch& watch, std::vector<Finding> findings) {
  std::vector<bool> is_new;
  is_new.reserve(findings.size());
  for (Finding& finding : findings) {
    shorten(finding, kKeptLength);
    is_new.push_back(keep(watch, finding));
  }
  const auto act_on = [&](bool errors) {
    for (size_t i = 0; i < findings.size(); ++i) {
      if ((findings[i].level == Level::kError) != errors) continue;
      contain(watch, "telling of a finding", [&] { act(watch, findings[i], is_new[i]); });
    }
  };
  act_on(false);  // what is only said comes first: an error ends the loop
  act_on(true);
}

}  // namespace torchnan
