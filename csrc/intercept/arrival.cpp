#include "intercept/arrival.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include "backward/call_site_ring.h"
#include "origin/harm.h"
#include "origin/lineage.h"

namespace torchnan {
namespace {

// Below autograd, the node of this operation is the one that this thread made last.
SiteId note_call_site(ThreadState& thread, const Watch& watch) {
  if (!watch.options().stacks || !watch.options().backward) return 0;
  const uint64_t sequence = at::sequence_number::peek();
  if (sequence == thread.last_sequence) return 0;
  // An operation that makes a node does so with grad mode on. Others come in between: hooks that pack what the node
  // saves, or the inside of a Function; they stand for the node until the operation itself comes.
  if (c10::GradMode::is_enabled()) {
    thread.last_sequence = sequence;
  } else if (sequence == thread.last_sequence_inside) {
    return 0;
  }
  thread.last_sequence_inside = sequence;
  return note_node(sequence - 1, thread);
}

void note_backward(ThreadState& thread, Watch& watch) {
  const int pass = torch::autograd::get_current_graph_task_id();
  if (pass == thread.last_backward_pass) return;
  thread.last_backward_pass = pass;
  if (pass != -1) judge_beginning_of_backward(watch);
}

}  // namespace

SiteId note_arrival(ThreadState& thread, Watch& watch) {
  thread.counters().ops.add(1);
  const SiteId site = note_call_site(thread, watch);
  if (lineage().in_use()) note_backward(thread, watch);
  return site;
}

bool watches_this_pass(const Watch& watch) {
  return watch.options().backward || torch::autograd::get_current_graph_task_id() == -1;
}

}  // namespace torchnan
