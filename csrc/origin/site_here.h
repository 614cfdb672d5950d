// Where the calling thread is at this moment, in stacks and backward nodes.
#pragma once

#include <cstdint>

#include "host/program.h"

namespace torchnan {

Site site_here(const Watch& watch, uint64_t thread);

}  // namespace torchnan
