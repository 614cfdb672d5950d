// Non-finite results that nobody has read yet: the candidates for the warning at the end.
#pragma once

#include <vector>

#include "origin/lineage.h"
#include "watch/watch.h"

namespace torchnan {

// Remembers an origin until it is used; of one call site only one. Bounded by the watch's max_findings.
void note_unused(Watch& watch, const Lineage::RecordPtr& record);

// The origins of this watch that were never read nor reported, oldest first. They are forgotten.
std::vector<Lineage::RecordPtr> take_unused(const Watch& watch);

}  // namespace torchnan
