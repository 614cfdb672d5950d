// Makes the finding of a cause.
#pragma once

#include <torchnan/finding.h>

#include "origin/provenance.h"
#include "detection/session.h"

namespace torchnan {

// Fills in the stack, module, phase and node of `site`.
void fill_location(const Site& site, const DetectionSession& session, Finding& finding);

// Returns the line of user code of a site.
Frame frame_of(SiteId id, const DetectionSession& session);
Frame frame_of(const Site& site, const DetectionSession& session);

// Whether the program wrote the values by an operation, and NaN is among them: then the report is about that line.
bool has_own_line(const OriginRecord& origin);

Finding make_finding(const Cause& cause, Level level, Harm harm, const DetectionSession& session);

}  // namespace torchnan
