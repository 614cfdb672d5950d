// Where the calling thread is at this moment, in stacks and backward nodes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <torchnan/export.h>

#include "host/host_runtime.h"

namespace torch::autograd {
struct Node;
}

namespace torchnan {

// Returns a number for this execution of a node.
uint64_t execution_id(const torch::autograd::Node& node);

// A node of the backward pass that is running: what is called inside it belongs to that pass.
struct NodeSite {
  std::string node;
  uint64_t execution_id = 0;
  SiteId forward = 0;
};

// Returns a node as one that runs.
TORCHNAN_API NodeSite site_of(const torch::autograd::Node& node);

// Returns the node that this thread runs, if it runs one.
TORCHNAN_API std::optional<NodeSite> current_node_site();

// Makes `site` the node that this thread runs while the engine runs none on it: what was called there is replayed.
TORCHNAN_API void set_replayed_node(std::optional<NodeSite> site);

// Makes `stack` what the stacks of this thread are nested in: it runs a callback on behalf of another place. 0 ends
// that.
TORCHNAN_API void set_outer_stack(SiteId stack);

// Returns the stack of this thread, nested in what it runs on behalf of.
TORCHNAN_API SiteId current_nested_stack();

// Returns where this thread is, whatever it runs there.
Site current_place();

// The same with all that a report says of an operation.
Site current_call_site(const DetectionSession& session, uint64_t thread);

}  // namespace torchnan
