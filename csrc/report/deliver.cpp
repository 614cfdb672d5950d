#include "report/deliver.h"

#include <exception>

#include <fmt/format.h>

#include "host/messenger.h"
#include "report/shorten.h"
#include "watch/thread_state.h"

namespace torchnan {
namespace {

bool keep(Watch& watch, const Finding& finding) {
  for (const auto& scope : ThreadState::here().scopes()) {
    if (scope.get() != &watch) scope->log().add(finding);
  }
  return watch.log().add(finding);
}

void call_back(Watch& watch, const Finding& finding) {
  try {
    watch.options().callback(finding);
  } catch (const std::exception& error) {
    watch.count_internal_error(fmt::format("the action of a finding failed: {}", error.what()));
  }
}

void act(Watch& watch, const Finding& finding, bool is_new) {
  const Options& options = watch.options();
  if (options.callback) {
    call_back(watch, finding);
  } else if (options.action == Action::kRaise && finding.level == Level::kError) {
    messenger().raise(finding);
  } else if (options.action != Action::kLog && is_new) {
    messenger().warn(finding);
  }
}

}  // namespace

void deliver(Watch& watch, Finding finding) {
  shorten(finding, kKeptLength);
  const bool is_new = keep(watch, finding);
  act(watch, finding, is_new);
}

void deliver_all(Watch& watch, std::vector<Finding> findings) {
  for (Finding& finding : findings) shorten(finding, kKeptLength);
  std::vector<std::pair<const Finding*, bool>> kept;
  for (const Finding& finding : findings) kept.emplace_back(&finding, keep(watch, finding));
  for (const auto& [finding, is_new] : kept) {  // what is only said comes first: an error ends the loop
    if (finding->level != Level::kError) act(watch, *finding, is_new);
  }
  for (const auto& [finding, is_new] : kept) {
    if (finding->level == Level::kError) act(watch, *finding, is_new);
  }
}

}  // namespace torchnan
