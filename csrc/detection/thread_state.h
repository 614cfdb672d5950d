// The session of a thread. The dispatch key propagates to the threads of autograd and jit; this follows it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <c10/util/FunctionRef.h>
#include <torchnan/export.h>

#include "check/bounds/awaited_versions.h"
#include "check/bounds/bound_source.h"
#include "check/bounds/moments.h"
#include "check/bounds/written_spans.h"
#include "detection/session.h"

namespace torchnan {

class PrivateGenerators;

class TORCHNAN_API ThreadState {
 public:
  static ThreadState& current() {
    ThreadState* const known = of_this_thread;
    return known != nullptr ? *known : make_current();
  }

  // Returns the innermost session that this thread entered. A thread that entered none, but runs on behalf of one that
  // did, gets the one entered last in the process. Null if there is none: the key is a leftover.
  DetectionSession* session() {
    awaited_versions.settle();
    if (scopes_.empty()) return inherited_session();
    return current_->is_open() ? current_ : nullptr;
  }
  std::shared_ptr<DetectionSession> shared_session();
  Counters& counters() { return *counters_; }  // of session(), which is not null
  // Adds one to a counter of session(), if there is one.
  void count(Counter Counters::* which) {
    if (session() != nullptr) (counters().*which).add(1);
  }

  // All scopes of this thread, innermost last.
  const std::vector<std::shared_ptr<DetectionSession>>& scopes() const { return scopes_; }

  void enter(std::shared_ptr<DetectionSession> session);
  void leave(const std::shared_ptr<DetectionSession>& session);

  // Detaches the thread from its sessions until as many calls of resume(); it may enter others meanwhile. Its dispatch
  // keys stay as they are, because the guards that Dynamo makes meanwhile contain them.
  void suspend();
  void resume();

  uint64_t id() const { return id_; }

  // Closes the session also for threads that have not left it; these drop it when they next enter or leave one.
  static void close(const DetectionSession& session);
  void remove_closed_sessions();

  // Called in a child of fork(), where the other threads and their sessions are gone.
  static void reset_after_fork();

  // The autograd sequence number that the last operation saw (see origin/call_site_ring.h).
  uint64_t last_sequence = 0;
  uint64_t last_sequence_inside = 0;  // without grad mode

  // Returns how many calls of this thread were bounded in the current step before this one.
  int64_t next_bounded_call(int64_t step) {
    if (step != step_) bounded_calls_ = 0;
    step_ = step;
    return bounded_calls_++;
  }

  WrittenSpans written_spans;
  AwaitedVersions awaited_versions;
  Moments& moments() { return moments_; }
  // Returns the bounds of tensors as this thread knows them, and counts the scans made for them. `elsewhere`: bounds of
  // memory that the host cannot read.
  BoundSource bound_source(const ExternalBounds* elsewhere = nullptr) {
    return {counters().bytes, counters().bytes_scanned_unknown, moments_, elsewhere};
  }

  // Those from which this thread draws in place of the program's; null outside of a replay.
  PrivateGenerators* private_generators = nullptr;

  // The backward pass of the last operation, -1 for none. Maintained only while something is non-finite.
  int last_backward_pass = -1;

 private:
  ThreadState();
  ~ThreadState();
  static ThreadState& make_current();
  DetectionSession* inherited_session();
  void refresh_current();

  // In the memory that each thread has from its start: found without a call.
  [[gnu::tls_model("initial-exec")]] static constinit thread_local ThreadState* of_this_thread;

  std::vector<std::shared_ptr<DetectionSession>> scopes_;  // of a suspended thread: a closed session comes first
  struct Suspension {
    std::vector<std::shared_ptr<DetectionSession>> scopes;  // that the thread had entered before
    int calls = 1;                                          // of suspend() without an entry between them
  };
  std::vector<Suspension> suspended_;  // innermost last
  std::shared_ptr<DetectionSession> inherited_;
  uint64_t inherited_at_ = 0;  // the generation of open scopes when it was adopted
  DetectionSession* current_ = nullptr;
  Counters* counters_ = nullptr;
  uint64_t id_ = 0;
  int64_t step_ = 0;
  int64_t bounded_calls_ = 0;
  Moments moments_;
};

// Returns how many sessions are open in the process.
TORCHNAN_API int64_t open_scopes();

// Calls `forget` to drop the records of values after the last session, unless a session is open. No session opens
// meanwhile, so the records of a new one are safe. Takes a lock of rank kScopes.
void call_unless_open(c10::function_ref<void()> forget);

}  // namespace torchnan
