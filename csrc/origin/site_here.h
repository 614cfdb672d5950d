// Where the calling thread is at this moment, in stacks and backward nodes.
#pragma once

#include <cstdint>

#include "host/program.h"

namespace torch::autograd {
struct Node;
}

namespace torchnan {

// Which execution of a node this is.
uint64_t run_of(const torch::autograd::Node& node);

Site site_here(const Watch& watch, uint64_t thread);

}  // namespace torchnan
