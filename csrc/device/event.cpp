#include "device/event.h"

#include <algorithm>
#include <cmath>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/function.h>

#include "check/bounds/bound_cache.h"
#include "origin/call_site_ring.h"
#include "origin/current_call_site.h"
#include "detection/session.h"
#include "device/node_names.h"
#include "origin/arguments.h"
#include "check/scan/float_format.h"
#include "check/scan/storage_of.h"
#include "check/scan/tensor_scan.h"

namespace torchnan {
namespace {

NodeNames& node_names = *new NodeNames;  // never destroyed: threads may outlive static destructors

}  // namespace

TensorSnapshot& TensorSnapshot::operator=(const at::Tensor& of) {
  storage = storage_of(of);
  keys = of.key_set();
  memory = storage->data();
  offset = of.storage_offset();
  device = of.device();
  dtype = of.scalar_type();
  is_parameter = torchnan::is_parameter(of);
  covers = covers_whole_storage(of, *storage);
  has_shape = static_cast<size_t>(of.dim()) <= kMaxDims;
  dims = has_shape ? static_cast<uint8_t>(of.dim()) : 0;
  const c10::IntArrayRef sizes = of.sizes();
  const c10::IntArrayRef strides = of.strides();
  for (size_t d = 0; d < dims; ++d) {
    shape_[d] = sizes[d];
    shape_[dims + d] = strides[d];
  }
  return *this;
}

ByteSpan TensorSnapshot::span() const {
  if (covers || !has_shape) return {0, std::numeric_limits<int64_t>::max()};
  const auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  int64_t last = offset;
  for (size_t d = 0; d < dims; ++d) last += (shape_[d] - 1) * shape_[dims + d];
  return {offset * bytes, (last + 1) * bytes};
}

bool TensorSnapshot::fills_span() const {
  if (covers) return true;
  int64_t elements = 1;
  for (const int64_t size : sizes()) elements *= size;
  const ByteSpan bytes = span();
  return has_shape && elements * static_cast<int64_t>(c10::elementSize(dtype)) == bytes.end - bytes.begin;
}

bool TensorSnapshot::has_place_of(const TensorSnapshot& other) const {
  if (covers && other.covers) return true;
  return has_shape && other.has_shape && dtype == other.dtype && offset == other.offset && sizes() == other.sizes() &&
         strides() == other.strides();
}

// Like current_call_site(), but for every operation, so it allocates nothing.
// In a backward pass, a noted call site includes that of the forward operation.
EventContext::EventContext(const OpPlan& of_plan, DetectionSession& in_session, uint64_t on_thread, SiteId noted)
    : plan(&of_plan),
      session(in_session),
      grad_mode(c10::GradMode::is_enabled()),
      thread(on_thread),
      step(in_session.step()) {
  if (const torch::autograd::Node* const current = running_node()) {
    node = node_names.of(*current);
    node_execution_id = execution_id(*current);
    forward = CallSiteRing::find(*current);
  }
  live = noted != 0 && node == nullptr ? noted : runtime().current_stack_id();
}

Site Event::site() const {
  Site site;
  site.live = live;
  site.forward = forward;
  if (node != nullptr) site.node = *node;
  site.node_execution_id = node_execution_id;
  site.grad_mode = grad_mode;
  site.thread = thread;
  site.step = step;
  return site;
}

uint64_t Event::max_intended() const {
  const FloatFormat& format = *float_format(tensor.dtype);
  return (intended.inf() ? format.first_nan : format.infinity) - 1;
}

uint64_t Event::limit() const {
  if (expects_infinity) return float_format(tensor.dtype)->first_nan - 1;
  return std::isfinite(assumed) ? std::min(max_intended(), encode_magnitude(assumed, tensor.dtype)) : max_intended();
}

}  // namespace torchnan
