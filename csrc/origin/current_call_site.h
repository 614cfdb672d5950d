// The current location of the calling thread, in stacks and backward nodes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <torchnan/export.h>

#include "base/runtime.h"

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

// Makes this thread work for torchnan inside of the node that runs now: this node counts as none, and no node is
// replayed. Nodes that the work runs, or replays, count.
class TORCHNAN_API OutsideOfNode {
 public:
  OutsideOfNode();
  ~OutsideOfNode();
  OutsideOfNode(const OutsideOfNode&) = delete;
  OutsideOfNode& operator=(const OutsideOfNode&) = delete;

 private:
  const torch::autograd::Node* const before_;
  const std::optional<NodeSite> replayed_before_;
};

// Returns the site of the running node, or else that of the replayed one.
TORCHNAN_API std::optional<NodeSite> current_node_site();

// Sets the node of this thread while the engine runs none on it, because a replay repeats operations of that node.
// Returns the one that was set before.
TORCHNAN_API std::optional<NodeSite> set_replayed_node(std::optional<NodeSite> site);

// Sets the stack in which the stacks of this thread are nested, while it runs a callback for other code. 0 ends that.
TORCHNAN_API void set_outer_stack(SiteId stack);

// Returns the stack of this thread, nested in the outer stack.
TORCHNAN_API SiteId current_nested_stack();

// Returns the current location of this thread.
Site current_place();

// Returns the same with everything that a report shows about an operation.
Site current_call_site(const DetectionSession& session, uint64_t thread);

}  // namespace torchnan
