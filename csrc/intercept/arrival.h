// What every intercepted call begins with, whatever becomes of it.
#pragma once

#include "host/program.h"
#include "watch/thread_state.h"

namespace torchnan {

// Counts the call, notes where the node that it belongs to was made, and judges the roots of a backward pass that
// begins with it. Returns the call site, if it had to be looked up.
SiteId note_arrival(ThreadState& thread, Watch& watch);

// Whether calls of the backward pass, if this is one, are judged.
bool watches_this_pass(const Watch& watch);

}  // namespace torchnan
