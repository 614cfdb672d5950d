#include "intercept/op_entry.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include "origin/call_site_ring.h"
#include "origin/harm.h"
#include "origin/nonfinite_registry.h"

namespace torchnan {
namespace {

// Below autograd, the node of this operation is the last one that this thread made.
SiteId record_call_site(ThreadState& thread, const DetectionSession& session) {
  if (!session.options().stacks || !session.options().backward) return 0;
  const uint64_t sequence = at::sequence_number::peek();
  if (sequence == thread.last_sequence) return 0;
  // An operation that makes a node does so with grad mode on. Other operations may run in between: hooks that pack
  // saved tensors, or the inside of a Function; they stand for the node until the operation itself runs.
  if (c10::GradMode::is_enabled()) {
    thread.last_sequence = sequence;
  } else if (sequence == thread.last_sequence_inside) {
    return 0;
  }
  thread.last_sequence_inside = sequence;
  return record_node_site(sequence - 1, thread);
}

}  // namespace

SiteId record_op_entry(ThreadState& thread, DetectionSession& session) {
  thread.counters().ops.add(1);
  return record_call_site(thread, session);
}

// While everything is finite there is nothing to check, and no pass to record.
void check_backward_start(ThreadState& thread, DetectionSession& session) {
  if (!nonfinite_registry().in_use()) return;
  const int pass = torch::autograd::get_current_graph_task_id();
  if (pass == thread.last_backward_pass) return;
  thread.last_backward_pass = pass;
  if (pass != -1) report_backward_start(session);
}

bool is_active_in_backward(const DetectionSession& session) {
  return session.options().backward || torch::autograd::get_current_graph_task_id() == -1;
}

Checking checking_of(const OpPlan& plan, const DetectionSession& session) {
  if (!is_active_in_backward(session)) return Checking::kOff;
  return session.is_skipped_op(plan.name, plan.index) ? Checking::kSkipped : Checking::kOn;
}

}  // namespace torchnan
