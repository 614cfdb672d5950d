#include <torch/csrc/utils/pybind.h>  // must be first: converts tensors to and from Python

#include "python/kept_calls.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "intercept/session_lifetime.h"
#include "detection/error_containment.h"
#include "detection/thread_state.h"
#include "device/session_number.h"
#include "origin/late_replay.h"
#include "python/call_python.h"
#include "python/compiled_regions.h"
#include "python/region_call.h"

namespace torchnan {
namespace {

constexpr size_t kMaxCalls = 256;
constexpr const char* kOtherReplay = "another call was being replayed when the device reported";

struct KeptCall {
  std::shared_ptr<RegionCall> call;
  SessionNumber session;
};
std::deque<KeptCall>& kept = *new std::deque<KeptCall>;  // guarded by the GIL; never destroyed: Python ends before

// Forgets the calls that fulfil a condition. Forgetting one may run code of the program.
template <typename Condition>
void forget_if(Condition&& is_forgotten) {
  std::deque<KeptCall> others, forgotten;
  for (KeptCall& one : kept) (is_forgotten(one) ? forgotten : others).push_back(std::move(one));
  kept.swap(others);
  for (const KeptCall& one : forgotten) one.call->forget();
}

// Makes a session the current one of this thread, for a while.
class Inside {
 public:
  explicit Inside(std::shared_ptr<DetectionSession> session) {
    if (ThreadState::current().shared_session() == session) return;
    enter_session(session);
    entered_ = std::move(session);
  }
  ~Inside() {
    if (entered_ != nullptr) leave_session(entered_);
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  std::shared_ptr<DetectionSession> entered_;
};

// A replay replays no other call, and a thread cannot wait for Python at its end.
LateReplay replay_kept_call(DetectionSession& session, uint64_t event, KindsOfEvent kinds_of) {
  LateReplay replay;
  if (is_python_ending()) return replay;
  run_contained(session, "replaying a compiled region", [&] {
    with_gil([&] {
      const SessionNumber number(session);
      const auto of_event = [&](const KeptCall& one) { return one.session == number && one.call->has_result(event); };
      const auto found = std::find_if(kept.begin(), kept.end(), of_event);
      if (found == kept.end()) return;
      if (is_replaying()) return void(replay.obstacle = kOtherReplay);
      const std::shared_ptr<RegionCall> call = found->call;
      const Inside inside(session.shared_from_this());
      replay = call->replay_late(event, kinds_of);
    });
  });
  return replay;
}

}  // namespace

void forget_calls_of_other_steps(DetectionSession& session) {
  const SessionNumber number(session);
  const int64_t step = session.step();
  const auto is_of_other_step = [&](const KeptCall& one) {
    const int64_t of_call = one.call->step();
    return one.session == number && of_call != step && of_call != step - 1;  // numbers may start again
  };
  if (std::any_of(kept.begin(), kept.end(), is_of_other_step)) forget_if(is_of_other_step);
}

void keep(std::shared_ptr<RegionCall> call, DetectionSession& session) {
  if (kept.size() == kMaxCalls) {
    const KeptCall oldest = std::move(kept.front());
    kept.pop_front();
    oldest.call->forget();
  }
  int64_t bytes = call->bytes_kept() + bytes_of_kept_calls();
  for (auto oldest = kept.begin(); oldest != kept.end() && bytes > session.options().max_copied_bytes; ++oldest) {
    bytes -= oldest->call->bytes_kept();
    oldest->call->release_memory();
  }
  kept.push_back({std::move(call), SessionNumber(session)});
}

int64_t bytes_of_kept_calls() {
  int64_t bytes = 0;
  for (const KeptCall& one : kept) bytes += one.call->bytes_kept();
  return bytes;
}

void forget_kept_calls(DetectionSession& session) {
  const SessionNumber number(session);
  forget_if([&](const KeptCall& one) { return one.session == number; });
}

void install_late_replays() { set_late_replayer(&replay_kept_call); }

}  // namespace torchnan
