// The current location of the calling thread, in stacks and backward nodes.
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

// A node of the backward pass that is running. Operations inside it belong to that pass.
struct NodeSite {
  std::string node;
  uint64_t execution_id = 0;
  SiteId forward = 0;
};

// Returns the node as a running one.
TORCHNAN_API NodeSite site_of(const torch::autograd::Node& node);

// Returns the backward node that the engine runs on this thread, null if there is none.
TORCHNAN_API torch::autograd::Node* running_node();

// Lets the node that runs now count as none, until return_to_running_node(): this thread works for torchnan inside of
// it. Nodes that this work runs count.
TORCHNAN_API void leave_running_node();
TORCHNAN_API void return_to_running_node();

// Returns the site of the running node, or else that of the replayed one.
TORCHNAN_API std::optional<NodeSite> current_node_site();

// Sets the node of this thread while the engine runs none on it, because a replay repeats operations of that node.
TORCHNAN_API void set_replayed_node(std::optional<NodeSite> site);

// Sets the stack in which the stacks of this thread are nested, while it runs a callback for other code. 0 ends that.
TORCHNAN_API void set_outer_stack(SiteId stack);

// Returns the stack of this thread, nested in the outer stack.
TORCHNAN_API SiteId current_nested_stack();

// Returns the current location of this thread.
Site current_place();

// Returns the same with everything that a report shows about an operation.
Site current_call_site(const DetectionSession& session, uint64_t thread);

}  // namespace torchnan
