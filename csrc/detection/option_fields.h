// The list of all fields of Options, by the names of the keywords of torchnan.detect(). `callback` has no keyword: in
// Python it is a callable action.
#pragma once

#include <torchnan/options.h>

namespace torchnan {

// Calls visit(name, field) for each field.
template <typename Visitor>
void for_each_option(Options& options, Visitor&& visit) {
  visit("action", options.action);
  visit("check_nan", options.check_nan);
  visit("check_inf", options.check_inf);
  visit("when", options.when);
  visit("backward", options.backward);
  visit("stacks", options.stacks);
  visit("skip_ops", options.skip_ops);
  visit("rescan_every", options.rescan_every);
  visit("headroom", options.headroom);
  visit("max_findings", options.max_findings);
  visit("log", options.log);
}

}  // namespace torchnan
