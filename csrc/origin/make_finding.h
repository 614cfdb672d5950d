// From what is remembered of a value to what is told about it.
#pragma once

#include <torchnan/finding.h>

#include "origin/record.h"
#include "watch/watch.h"

namespace torchnan {

// Fills in where `site` is: stack, module, phase, node.
void tell_place(const Site& site, const Watch& watch, Finding& finding);

// The user's line of a site.
Frame frame_of(SiteId id, const Watch& watch);

Finding make_finding(const Cause& cause, Level level, Harm harm, const Watch& watch);

}  // namespace torchnan
