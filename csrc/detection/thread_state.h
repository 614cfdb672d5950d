// The session that a thread works for. The dispatch key travels with autograd's and jit's own threads; this follows it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <c10/util/FunctionRef.h>
#include <torchnan/export.h>

#include "bounds/bound_source.h"
#include "bounds/moments.h"
#include "bounds/written_spans.h"
#include "detection/session.h"

namespace torchnan {

class TORCHNAN_API ThreadState {
 public:
  static ThreadState& current();

  // Returns the innermost session entered by this thread; for a thread that entered none but runs on behalf of one that
  // did, the one entered last in the process. Null if there is none: the key is a leftover.
  DetectionSession* session();
  std::shared_ptr<DetectionSession> shared_session();
  Counters& counters() { return *counters_; }  // of session(), which is not null
  // Adds one to a count of session(), if there is one.
  void count(Counter Counters::* which) {
    if (session() != nullptr) (counters().*which).add(1);
  }

  // All scopes of this thread, innermost last.
  const std::vector<std::shared_ptr<DetectionSession>>& scopes() const { return scopes_; }

  void enter(std::shared_ptr<DetectionSession> session);
  void leave(const std::shared_ptr<DetectionSession>& session);

  // Until as many calls of resume() the thread works for no session. Its dispatch keys stay as they are: the guards
  // that Dynamo makes meanwhile hold them.
  void suspend();
  void resume();

  uint64_t id() const { return id_; }

  // Ends the session for threads that have not left it as well; these drop it when they enter or leave one next.
  static void close(const DetectionSession& session);
  void remove_closed_sessions();

  // Called in a child of fork(): the other threads are gone, and with them their sessions.
  static void reset_after_fork();

  // The autograd sequence number that the last operation saw (see call_sites/call_site_ring.h).
  uint64_t last_sequence = 0;
  uint64_t last_sequence_inside = 0;  // without grad mode

  // Returns how many calls this thread has bounded before in the step under way.
  int64_t next_bounded_call(int64_t step) {
    if (step != step_) bounded_calls_ = 0;
    step_ = step;
    return bounded_calls_++;
  }

  WrittenSpans written_spans;
  Moments& moments() { return moments_; }
  // Returns the bounds of tensors as this thread knows them; what it scans for them is counted. `elsewhere`: those of
  // memory that the host cannot read.
  BoundSource bound_source(const ExternalBounds* elsewhere = nullptr) {
    return {counters().bytes, counters().bytes_scanned_unknown, moments_, elsewhere};
  }

  // The backward pass that the last operation belonged to, -1 for none. Kept up only while something is non-finite.
  int last_backward_pass = -1;

 private:
  ThreadState();
  ~ThreadState();
  void refresh_current();

  std::vector<std::shared_ptr<DetectionSession>> scopes_;     // of a suspended thread: a closed session comes first
  std::vector<std::shared_ptr<DetectionSession>> suspended_;  // the scopes that a suspended thread has entered before
  int suspensions_ = 0;
  std::shared_ptr<DetectionSession> inherited_;
  uint64_t inherited_at_ = 0;  // the generation of open scopes it was adopted at
  DetectionSession* current_ = nullptr;
  Counters* counters_ = nullptr;
  uint64_t id_ = 0;
  int64_t step_ = 0;
  int64_t bounded_calls_ = 0;
  Moments moments_;
};

// Returns how many sessions are open in the process.
TORCHNAN_API int64_t open_scopes();

// Forgets what is known of values after the last session, unless one is open; none opens meanwhile, so that what a new
// one records is not forgotten with it. Under a lock of rank kScopes.
void call_unless_open(c10::function_ref<void()> forget);

}  // namespace torchnan
