#include "origin/inference_turn.h"

#include <algorithm>

#include <c10/core/GradMode.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/graph_task.h>

#include "base/runtime.h"

namespace torchnan {
namespace {

// Where the collectives of a turn were started. Places beyond these do not end it.
struct Turn {
  static constexpr size_t kMostPlaces = 64;

  int64_t number = 0;
  c10::SmallVector<SiteId, 8> places;
  SiteId last = 0;
};

thread_local Turn turn;

bool is_training() { return c10::GradMode::is_enabled() || torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace

void note_collective(const DetectionSession& session) {
  if (!session.is_first_step() || is_training()) return;
  const SiteId place = runtime().current_stack_id();
  if (place == turn.last) return;
  turn.last = place;
  if (std::find(turn.places.begin(), turn.places.end(), place) != turn.places.end()) {
    ++turn.number;
    turn.places.clear();
  }
  if (turn.places.size() < Turn::kMostPlaces) turn.places.push_back(place);
}

int64_t inference_turn(const DetectionSession& session) { return session.is_first_step() ? turn.number : 0; }

}  // namespace torchnan
