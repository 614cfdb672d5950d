// The turns of a program without steps: requests of a server, batches of an evaluation. Values that collectives bring
// in one turn have one cause; the next turn may have another.
#pragma once

#include <cstdint>

#include "detection/session.h"

namespace torchnan {

// Records that this thread starts a collective. A turn ends when a place starts its next one, after another place has.
void note_collective(const DetectionSession& session);

// The turn of this thread; 0 in a program that has counted a step.
int64_t inference_turn(const DetectionSession& session);

}  // namespace torchnan
