#include "origin/current_call_site.h"

#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/function.h>

#include "origin/call_site_ring.h"
#include "detection/session.h"
#include "base/scope_table.h"

namespace torchnan {
namespace {

thread_local std::optional<NodeSite> replayed_node;
// The one that counts as none. Every call on a device asks for it.
[[gnu::tls_model("initial-exec")]] constinit thread_local const torch::autograd::Node* node_outside = nullptr;
thread_local SiteId outer_stack = 0;

// Innermost first. Allocates, so call it only for a report.
std::vector<Frame> current_inner_frames() {
  if (runtime().has_scopes_in_stacks()) return {};
  return frames_of_scope(current_scope());
}

}  // namespace

// A node runs once in a backward pass.
uint64_t execution_id(const torch::autograd::Node& node) {
  const auto pass = static_cast<uint64_t>(torch::autograd::get_current_graph_task_id());
  return (pass << 40) ^ (node.sequence_nr() << 1) ^ (node.thread_id() << 32) ^ 1;
}

NodeSite site_of(const torch::autograd::Node& node) {
  return {node.name(), execution_id(node), CallSiteRing::find(node)};
}

torch::autograd::Node* running_node() {
  torch::autograd::Node* const node = torch::autograd::get_current_node().get();
  return node == node_outside ? nullptr : node;
}

OutsideOfNode::OutsideOfNode()
    : before_(std::exchange(node_outside, torch::autograd::get_current_node().get())),
      replayed_before_(set_replayed_node(std::nullopt)) {}

OutsideOfNode::~OutsideOfNode() {
  set_replayed_node(replayed_before_);
  node_outside = before_;
}

std::optional<NodeSite> current_node_site() {
  const torch::autograd::Node* const node = running_node();
  if (node == nullptr) return replayed_node;
  return site_of(*node);
}

std::optional<NodeSite> set_replayed_node(std::optional<NodeSite> site) {
  return std::exchange(replayed_node, std::move(site));
}

void set_outer_stack(SiteId stack) { outer_stack = stack; }

SiteId current_nested_stack() {
  const SiteId live = runtime().current_stack_id();
  return outer_stack == 0 ? live : runtime().nest_stack(live, outer_stack);
}

Site current_place() {
  Site site;
  site.live = current_nested_stack();
  site.inner = current_inner_frames();
  return site;
}

Site current_call_site(const DetectionSession& session, uint64_t thread) {
  Site site;
  site.live = current_nested_stack();
  site.grad_mode = c10::GradMode::is_enabled();
  site.thread = thread;
  site.step = session.step();
  if (auto inside = current_node_site()) {
    site.node = std::move(inside->node);
    site.node_execution_id = inside->execution_id;
    site.forward = inside->forward;
  } else {
    site.inner = current_inner_frames();  // the backward pass has lines of the forward pass
  }
  return site;
}

}  // namespace torchnan
