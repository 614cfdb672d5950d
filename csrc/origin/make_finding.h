// From what is remembered of a value to what is told about it.
#pragma once

#include <torchnan/finding.h>

#include "origin/provenance.h"
#include "detection/session.h"

namespace torchnan {

// Fills in where `site` is: stack, module, phase, node.
void fill_location(const Site& site, const DetectionSession& session, Finding& finding);

// The user's line of a site.
Frame frame_of(SiteId id, const DetectionSession& session);

Finding make_finding(const Cause& cause, Level level, Harm harm, const DetectionSession& session);

}  // namespace torchnan
