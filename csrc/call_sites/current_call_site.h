// Where the calling thread is at this moment, in stacks and backward nodes.
#pragma once

#include <cstdint>

#include "host/host_runtime.h"

namespace torch::autograd {
struct Node;
}

namespace torchnan {

// Returns a number for this execution of a node.
uint64_t execution_id(const torch::autograd::Node& node);

Site current_call_site(const DetectionSession& session, uint64_t thread);

}  // namespace torchnan
