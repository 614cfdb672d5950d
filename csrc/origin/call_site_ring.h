// Maps a backward node to the call site of the forward operation that made it.
#pragma once

#include <cstdint>

#include <torch/csrc/autograd/function.h>

#include <torchnan/export.h>

#include "base/runtime.h"

namespace torchnan {

class ThreadState;

// Autograd numbers the nodes that a thread makes. An operation below autograd runs just after its node was made, so
// the thread's current number identifies its node. Ring buffers, one per thread, map the number to the call
// site; nothing is attached to the node. Old entries are overwritten, and then simply not found.
class CallSiteRing {
 public:
  ~CallSiteRing();
  CallSiteRing(const CallSiteRing&) = delete;
  CallSiteRing& operator=(const CallSiteRing&) = delete;

  // Returns the ring of the calling thread.
  static CallSiteRing& here();

  void note(uint64_t sequence, SiteId site) noexcept;

  // Returns the call site of `node`, whichever thread made it; 0 if unknown. A view has no entry: the next operation on
  // its thread stands for it.
  static SiteId find(const torch::autograd::Node& node);

 private:
  CallSiteRing();
  SiteId look_up(uint64_t sequence) const noexcept;

  static constexpr uint64_t kEntries = 1 << 18;
  static constexpr uint64_t kLookAhead = 16;

  struct Entry;
  class RingRegistry;
  Entry* entries_;
};

// Records the current location of this thread as the call site of its node number `sequence`, and returns it.
SiteId record_node_site(uint64_t sequence, ThreadState& thread);

// The same for the next node of this thread, before it is made.
TORCHNAN_API void record_next_node_site();

}  // namespace torchnan
