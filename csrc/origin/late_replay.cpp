#include "origin/late_replay.h"

#include <atomic>

namespace torchnan {
namespace {

std::atomic<LateReplayer> of_runtime{nullptr};

}  // namespace

LateReplay replay_late(DetectionSession& session, uint64_t event, KindsOfEvent kinds_of) {
  const LateReplayer replayer = of_runtime;
  return replayer == nullptr ? LateReplay() : replayer(session, event, kinds_of);
}

void set_late_replayer(LateReplayer replayer) { of_runtime = replayer; }

}  // namespace torchnan
