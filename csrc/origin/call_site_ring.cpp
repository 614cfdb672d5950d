#include "origin/call_site_ring.h"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/graph_task.h>

#include "origin/current_call_site.h"
#include "base/fork_safe_mutex.h"
#include "detection/error_containment.h"
#include "detection/thread_state.h"

namespace torchnan {

// One word, so that a reader on another thread never sees half an entry.
struct CallSiteRing::Entry {
  std::atomic<uint64_t> packed;  // low half of the sequence number, call site
};

// All rings by autograd's thread numbers, which are never reused. A ring outlives its thread, because another thread
// may run the backward pass of that thread's graph. Only the last few rings of ended threads are kept.
class CallSiteRing::RingRegistry {
 public:
  static RingRegistry& of_process;

  CallSiteRing* open(uint64_t thread) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<CallSiteRing> ring(new CallSiteRing);
    return rings_.emplace(thread, std::move(ring)).first->second.get();
  }

  void thread_has_ended(uint64_t thread) noexcept {
    const std::lock_guard lock(mutex_);
    std::swap(thread, ended_[next_ended_]);  // the one that has waited longest
    next_ended_ = (next_ended_ + 1) % kKeptAfterEnd;
    rings_.erase(thread);
  }

  SiteId find(uint64_t thread, uint64_t sequence) {
    const std::lock_guard lock(mutex_);
    const auto ring = rings_.find(thread);
    return ring == rings_.end() ? 0 : ring->second->look_up(sequence);
  }

 private:
  static constexpr size_t kKeptAfterEnd = 16;

  ForkSafeMutex mutex_;
  std::unordered_map<uint64_t, std::unique_ptr<CallSiteRing>> rings_;
  std::array<uint64_t, kKeptAfterEnd> ended_{};  // 0 means no thread
  size_t next_ended_ = 0;
};

// Never destroyed: threads may outlive static destructors.
CallSiteRing::RingRegistry& CallSiteRing::RingRegistry::of_process = *new RingRegistry;

// Pages that cost nothing until they are written, nor after they have been given back; calloc() would keep them.
CallSiteRing::CallSiteRing() {
  void* pages = mmap(nullptr, kEntries * sizeof(Entry), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  entries_ = static_cast<Entry*>(pages);
}

CallSiteRing::~CallSiteRing() { munmap(entries_, kEntries * sizeof(Entry)); }

CallSiteRing& CallSiteRing::here() {
  struct Mine {
    uint64_t thread = at::RecordFunction::currentThreadId();
    CallSiteRing* ring = RingRegistry::of_process.open(thread);
    ~Mine() { RingRegistry::of_process.thread_has_ended(thread); }
  };
  thread_local Mine mine;
  return *mine.ring;
}

void CallSiteRing::note(uint64_t sequence, SiteId site) noexcept {
  entries_[sequence % kEntries].packed.store((sequence << 32) | site, std::memory_order_relaxed);
}

SiteId CallSiteRing::look_up(uint64_t sequence) const noexcept {
  for (uint64_t s = sequence; s < sequence + kLookAhead; ++s) {
    const uint64_t packed = entries_[s % kEntries].packed.load(std::memory_order_relaxed);
    if (packed != 0 && static_cast<uint32_t>(packed >> 32) == static_cast<uint32_t>(s)) {
      return static_cast<SiteId>(packed);
    }
  }
  return 0;
}

// The node of an operation that writes into a view is made before the operation runs, and wrapped afterwards.
SiteId CallSiteRing::find(const torch::autograd::Node& node) {
  if (typeid(node) == typeid(torch::autograd::CopySlices)) {
    const auto& slices = static_cast<const torch::autograd::CopySlices&>(node);
    if (slices.fn) return find(*slices.fn);
  }
  return RingRegistry::of_process.find(node.thread_id(), node.sequence_nr());
}

SiteId record_node_site(uint64_t sequence, ThreadState& thread) {
  SiteId site = runtime().current_stack_id();
  // The node was made while another node ran: by recomputation, or for a second derivative.
  if (torch::autograd::get_current_graph_task_id() != -1) {
    if (const torch::autograd::Node* const outer = running_node()) {
      site = runtime().nest_stack(site, CallSiteRing::find(*outer));
    }
  }
  CallSiteRing::here().note(sequence, site);
  thread.counters().call_sites.add(1);
  return site;
}

void record_next_node_site() {
  ThreadState& thread = ThreadState::current();
  const DetectionSession* session = thread.session();
  if (session == nullptr || !session->options().stacks || !session->options().backward) return;
  const uint64_t sequence = at::sequence_number::peek();
  run_contained(*session, "noting a call site", [&] { record_node_site(sequence, thread); });
  thread.last_sequence = sequence + 1;
}

}  // namespace torchnan
