#include "device/harm_recorder.h"

namespace torchnan {

void HarmRecorder::add(const at::Tensor& given) {
  if (!given.defined()) return;
  const auto values = scannable(given);
  if (!values->defined()) return;
  Scanner* const scanner = Scanner::of(values->device());
  if (scanner != stream_.scanner) {
    finish();
    stream_ = scanner->current_stream();
  }
  const TensorSnapshot snapshot(*values);
  ScanList scans;
  {
    Devices::Lock locked(devices());
    const EventNumber last = locked.journal().last_event(snapshot.storage);
    const EventInput input{last, snapshot.storage};
    if (!has_to_be_scanned(locked.journal().find(last))) {
      seen_.push_back(input);
      last_ = snapshot;
      return;
    }
    Event* const event = locked.add_reader(EventType::kHarm, snapshot, context_, stream_, input);
    if (event == nullptr) return;
    event->harm = harm_;
    if (scans.add(*values, event->number, event->limit())) event->scanner = scanner;
  }
  devices().launch(scans, stream_);
}

// An expected infinity has raised no alarm. Part of the memory may hold other values, and a proof may have started from
// a value not yet known to be bad. For gradients and state, which are many, the proofs are trusted.
bool HarmRecorder::has_to_be_scanned(const Event* written) const {
  if (!is_seen(written) || written->expects_infinity) return true;
  const bool is_step = harm_ == HarmKind::kGradient || harm_ == HarmKind::kOptimizerState;
  if (is_step) return written->scanner == nullptr && !written->is_proved;
  return !written->tensor.covers || written->scanner == nullptr;
}

void HarmRecorder::finish() {
  if (seen_.empty()) return;
  Devices::Lock locked(devices());
  Event* const event = locked.add_reader(EventType::kHarm, last_, context_, stream_, seen_);
  if (event != nullptr) event->harm = harm_;
  seen_.clear();
}

}  // namespace torchnan
