#include "device/harm_recorder.h"

namespace torchnan {

void HarmRecorder::add(const at::Tensor& given) {
  if (!given.defined()) return;
  const auto values = scannable(given);
  if (!values->defined()) return;
  if (Scanner::of(values->device()) != scans_.stream().scanner) finish();
  scans_.choose(values->device());
  const TensorSnapshot snapshot(*values);
  Devices::Lock locked(devices());
  scans_.make_room(locked);
  Journal::RecordedKnowledge known = locked.journal().look_up(*values);
  if (!is_seen(locked.journal().find(known.last))) {
    const Event* const event = scans_.add_unknown(locked, *values, known.last, context_);
    if (event == nullptr) return;
    known.last = event->number;
    known.is_alone = true;
  }
  EventInput input{known.last, snapshot.storage};
  input.is_alone = known.is_alone;
  if (!has_to_be_scanned(locked.journal().find(known.last), known.is_alone)) {
    seen_.push_back(input);
    last_ = snapshot;
    return;
  }
  Event* const event = locked.add_reader(EventType::kHarm, snapshot, context_, scans_.stream(), input);
  if (event == nullptr) return;
  event->harm = harm_;
  scans_.add(locked, *event, *values, /*may_wait=*/false);
}

// An expected infinity has raised no alarm. Part of the memory may hold other values, and a proof may have started from
// a value not yet known to be bad. For gradients and state, which are many, the proofs are trusted.
bool HarmRecorder::has_to_be_scanned(const Event* written, bool is_alone) const {
  if (!is_seen(written) || written->expects_infinity) return true;
  const bool is_step = harm_ == HarmKind::kGradient || harm_ == HarmKind::kOptimizerState;
  if (is_step) return written->scanner == nullptr && !written->is_proved;
  return !is_alone || written->scanner == nullptr;
}

void HarmRecorder::finish() {
  scans_.launch();
  if (seen_.empty()) return;
  Devices::Lock locked(devices());
  Event* const event = locked.add_reader(EventType::kHarm, last_, context_, scans_.stream(), seen_);
  if (event != nullptr) event->harm = harm_;
  seen_.clear();
}

}  // namespace torchnan
