#include "origin/site_here.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/node.h>

#include "backward/call_site_ring.h"
#include "watch/watch.h"

namespace torchnan {

Site site_here(const Watch& watch, uint64_t thread) {
  Site site;
  site.live = program().capture();
  site.grad_mode = c10::GradMode::is_enabled();
  site.thread = thread;
  site.step = watch.step();
  if (const auto node = torch::autograd::get_current_node()) {
    site.node = node->name();
    site.forward = CallSiteRing::find(*node);
  }
  return site;
}

}  // namespace torchnan
